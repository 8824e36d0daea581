#include <filesystem>
#include <optional>

#include "checkpoint_job.h"
#include "titan/app/commands.h"
#include "titan/app/program.h"
#include "titan/app/rank_session.h"
#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/final_message.h"
#include "titan/base/process.h"
#include "titan/base/stop_signals.h"
#include "titan/cli/facts.h"
#include "titan/config/dump.h"
#include "titan/config/load.h"
#include "titan/estimate/planned_job.h"
#include "titan/job/checks.h"
#include "titan/job/start.h"
#include "titan/tools/supervise.h"
#include "titan/train/device.h"
#include "titan/train/run.h"

namespace titan {
namespace {

/// All renamed options in one line.
std::string renaming_line(const LoadedConfig& loaded) {
  const size_t more = loaded.renamed.size() - 1;
  const std::string& file = loaded.config.job.config_file;
  return fmt::format("{}{}; `titan_train config show {}` prints today's spelling", loaded.renamed.front(),
                     more == 0 ? "" : fmt::format(", and {} more former spelling{}", more, more == 1 ? "" : "s"),
                     file.empty() ? "…" : file);
}

/// Logs the lines about the config; `located` are the lines about its files.
void show_config(const Log& log, const Schema& schema, const LoadedConfig& loaded,
                 const std::vector<std::string>& located, const World& world) {
  const JobConfig& config = loaded.config;
  log.info("Starting job: {}", config.job.description);
  if (const std::string line = december_line(loaded); !line.empty()) log.info(line);
  if (!loaded.renamed.empty()) log.shared_warning(renaming_line(loaded));
  for (const std::string& line : located) log.info(line);
  for (const std::string& note : loaded.notes) log.shared_warning(note);
  if (!world.is_distributed()) {
    for (const std::string& note : loaded.notes_for_one_process) log.warning(note);
  }
  if (config.job.print_config) log.info(dump_json(schema, config));
}

void save_config(const Schema& schema, const JobConfig& config) {
  const std::filesystem::path path = std::filesystem::path(config.job.dump_folder) / *config.job.save_config_file;
  with_remedy("name a file that can be written in job.save_config_file", [&] {
    make_folders(path.parent_path());
    write_file_atomically(path, path.extension() == ".toml" ? dump_toml(schema, config) : dump_json(schema, config));
  });
}

/// Rank 0 reports the memory per rank; the other ranks print nothing.
int estimate_memory(const JobConfig& config) {
  const Launch launch = detect_launch(config);
  if (launch.rank != 0 && !launch.fake) return 0;
  const Log log;
  const int64_t host_ranks = launch.fake ? 1 : std::max(launch.local_size.value_or(1), int64_t{1});
  const DeviceInfo device = choose_device(config.training.device, 0);
  const bool on_gpu = !device.device.is_cpu();
  const MemoryRoom room = memory_room(device, host_ranks, config.debug.share_gpu);
  const PlannedJob job =
      plan_job(config, ranks_of_launch(config), launch.rank, on_gpu, on_gpu ? room.bytes : std::optional<int64_t>());
  for (const std::string& line : estimate_lines(config, job, on_gpu, room.bytes, room.words)) log.info(line);
  return 0;
}

}  // namespace

int run_train(const Schema& schema, std::span<const std::string> arguments) {
  if (!arguments.empty()) refuse_mistyped_command(arguments[0]);
  std::vector<ConfigCheck> checks = job_checks();
  checks.push_back(world_check());
  checks.push_back(device_check());
  LoadedConfig loaded = load_run_job(schema, arguments, checks);
  if (const int code = report_job_problems(loaded)) return code;
  const std::vector<std::string> located = use_found_inputs(loaded, find_inputs(loaded));
  const JobConfig& config = loaded.config;
  if (config.memory_estimation.enable) return estimate_memory(config);
  const auto final_message = std::make_shared<FinalMessage>();
  const StopSignals signals([final_message] { final_message->print(); });
  keep_freed_memory();
  RankSession session(schema, config, detect_launch(config), final_message);
  const Log& log = session.log();
  std::unique_ptr<Run> run;
  ExitCode code = ExitCode::success;
  try {
    StartTimes times{.meeting = wall_time()};
    const World& world = session.join();
    times.met = wall_time();
    times.follows_failure = follows_failure();
    show_config(log, schema, loaded, located, world);
    run = build_run(config, world, log);
    // Not earlier: now the folder is this run's own.
    session.note_failures_in(config.job.dump_folder);
    times.built = wall_time();
    run->start = times;
    if (config.job.save_config_file && world.rank == 0) save_config(schema, config);
    code = train(*run);
  } catch (...) {
    session.fail();
  }
  run.reset();
  return session.end(code);
}

}  // namespace titan
