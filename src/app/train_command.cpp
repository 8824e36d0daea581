#include <malloc.h>
#include <signal.h>

#include <filesystem>
#include <optional>

#include "titan/app/commands.h"
#include "titan/app/job_problems.h"
#include "titan/app/rank_session.h"
#include "titan/base/filesystem.h"
#include "titan/base/process.h"
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

void save_config(const Schema& schema, const JobConfig& config) {
  const std::filesystem::path path = std::filesystem::path(config.job.dump_folder) / *config.job.save_config_file;
  make_folders(path.parent_path());
  write_file_atomically(path, path.extension() == ".toml" ? dump_toml(schema, config) : dump_json(schema, config));
}

}  // namespace

int run_train(const Schema& schema, std::span<const std::string> arguments) {
  const LoadedConfig loaded = load_config(schema, arguments, config_checks());
  if (const int code = report_job_problems(schema, loaded)) return code;
  const JobConfig& config = loaded.config;
  const StopSignals signals;
  // A file that reaches its size limit is a failed write like that of a full disk, not a reason to die.
  ::signal(SIGXFSZ, SIG_IGN);
  keep_freed_memory();
  RankSession session(schema, config, detect_launch(config));
  const Log& log = session.log();
  log.info("Starting job: {}", config.job.description);
  std::optional<Trainer> trainer;
  auto train = [&](const World& world) {
    // Every rank has the same notes: one says them.
    for (const std::string& note : loaded.notes) world.rank == 0 ? log.warning(note) : log.info(note);
    if (config.job.print_config) log.info(dump_json(schema, config));
    trainer.emplace(config, world, log);
    if (config.job.save_config_file && world.rank == 0) save_config(schema, config);
    return trainer->run();
  };
  return session.run(train, [&] { trainer.reset(); });
}

}  // namespace titan
