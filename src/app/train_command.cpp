#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "titan/app/commands.h"
#include "titan/base/filesystem.h"
#include "titan/base/log.h"
#include "titan/base/process.h"
#include "titan/config/config_command.h"
#include "titan/config/dump.h"
#include "titan/config/load.h"
#include "titan/train/trainer.h"

namespace titan {
namespace {

/// Freed activations stay with the process: giving them back to the system and faulting them in again every step costs
/// more than the step's own arithmetic on small models.
void keep_freed_memory() {
  ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  ::mallopt(M_MXFAST, 0);  // else every large free first tidies up all small ones
}

/// Between two parallel loops OpenMP's threads spin, and unless told otherwise for milliseconds, much longer than these
/// pauses are: on a machine with other work to do, they take the processor from the thread that they wait for. 3,000
/// rounds, some tens of microseconds, cost nothing on an idle machine. libgomp reads this while it is loaded, hence a
/// second start, which would find a pipe that the config came through empty.
void limit_spinning(std::span<const std::string> arguments) {
  auto is_pipe = [](const std::string& word) {
    std::error_code none;
    const std::filesystem::file_status status = std::filesystem::status(word, none);
    return std::filesystem::is_fifo(status) || std::filesystem::is_character_file(status);
  };
  if (std::any_of(arguments.begin(), arguments.end(), is_pipe)) return;
  if (!std::getenv("GOMP_SPINCOUNT") && !std::getenv("OMP_WAIT_POLICY")) restart_with("GOMP_SPINCOUNT", "3000");
}

/// Problems that end the run before it starts; 0 when there are none.
int report_problems(const Schema& schema, const LoadedConfig& loaded) {
  if (!loaded.problems.empty()) {
    print_problems(std::cerr, loaded.problems);
    return static_cast<int>(ExitCode::bad_config);
  }
  std::vector<Problem> unbuilt = check_buildable(schema, loaded);
  const std::vector<Problem> missing = check_inputs(loaded);
  const ExitCode code = unbuilt.empty() ? ExitCode::bad_data : ExitCode::bad_config;
  unbuilt.insert(unbuilt.end(), missing.begin(), missing.end());
  if (!unbuilt.empty()) {
    print_problems(std::cerr, unbuilt);
    return static_cast<int>(code);
  }
  return 0;
}

}  // namespace

int run_train(const Schema& schema, std::span<const std::string> arguments) {
  const LoadedConfig loaded = load_config(schema, arguments, config_checks());
  if (int code = report_problems(schema, loaded)) return code;
  limit_spinning(arguments);
  const JobConfig& config = loaded.config;
  const Log log(::isatty(STDOUT_FILENO) != 0 && !config.metrics.disable_color_printing);
  const StopSignals signals;
  // A file that reaches its size limit is a failed write like that of a full disk, not a reason to die.
  ::signal(SIGXFSZ, SIG_IGN);
  keep_freed_memory();
  log.info("Starting job: {}", config.job.description);
  for (const std::string& note : loaded.notes) log.warning(note);
  if (config.job.print_config) log.info(dump_json(schema, config));
  Trainer trainer(config, log);
  if (config.job.save_config_file) {
    const std::filesystem::path path = std::filesystem::path(config.job.dump_folder) / *config.job.save_config_file;
    make_folders(path.parent_path());
    write_file_atomically(path, path.extension() == ".toml" ? dump_toml(schema, config) : dump_json(schema, config));
  }
  return static_cast<int>(trainer.run());
}

}  // namespace titan
