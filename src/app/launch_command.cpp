#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <iostream>

#include "checkpoint_job.h"
#include "titan/app/commands.h"
#include "titan/app/program.h"
#include "titan/base/error.h"
#include "titan/base/process.h"
#include "titan/base/text.h"
#include "titan/cli/options.h"
#include "titan/config/load.h"
#include "titan/job/checks.h"
#include "titan/job/device_problems.h"
#include "titan/tools/launch.h"
#include "titan/tools/supervise.h"

namespace titan {
namespace {

/// "0,2" or "all"; empty for all.
std::set<int64_t> ranks_in(const std::string& text, int64_t ranks) {
  std::set<int64_t> chosen;
  if (trim(text) == "all") return chosen;
  for (const std::string& part : split(text, ',')) {
    const std::string word = trim(part);
    int64_t rank = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), rank);
    if (error != std::errc() || end != word.data() + word.size() || rank < 0 || rank >= ranks) {
      throw Error(
          ExitCode::bad_config,
          fmt::format("launch: --log-rank {} is not a rank of 0 to {}; write a comma list of ranks, or all, there or "
                      "in the variable LOG_RANK",
                      word, ranks - 1));
    }
    chosen.insert(rank);
  }
  return chosen;
}

/// Other commands have no checkpoints from which they could resume.
void expect_training(const LaunchOptions& options) {
  if (!trains_nothing(options.rest)) return;
  throw Error(ExitCode::bad_config,
              fmt::format("launch: --restarts is for training; leave it out for {}", options.rest[0]));
}

}  // namespace

int run_launch(const Schema& schema, std::span<const std::string> arguments) {
  const std::optional<LaunchOptions> options = parse_launch(arguments, std::cout);
  if (!options) return 0;
  LaunchRequest request;
  request.ranks = options->ranks;
  request.program = std::filesystem::read_symlink("/proc/self/exe");
  request.arguments = options->rest;
  request.shown_ranks = ranks_in(options->log_rank, options->ranks);
  if (options->restarts > 0) expect_training(*options);
  const bool lists_ranks = !request.arguments.empty() && request.arguments[0] == "ranks";
  if (trains_nothing(request.arguments) && !lists_ranks) {
    // There is neither a config to check nor a dump folder.
    request.output_folder = "outputs/logs";
    request.output_is_result = true;
    request.shown_ranks = {0};
    return launch_ranks(request);
  }
  // Checked here too, although the ranks read the config again: a problem is then reported once, before any starts.
  const bool trains = !lists_ranks;
  std::vector<std::string> words = request.arguments;
  if (!trains || (!words.empty() && words[0] == "train")) words.erase(words.begin());
  if (!trains) words = config_words_of_ranks(words);
  if (!words.empty()) refuse_mistyped_command(words[0]);
  std::vector<ConfigCheck> checks = job_checks();
  if (trains) {
    checks.push_back(world_check(options->ranks));
    if (options->restarts > 0) checks.emplace_back(restart_problems);
    // Only what the config states of the device is checked here: the launcher opens no GPU. Each rank checks its own.
    checks.push_back([](const JobConfig& config, const Origins& origins) {
      return device_problems(config, origins, stated_facts(config));
    });
  }
  const LoadedConfig loaded = load_run_job(schema, words, checks);
  if (loaded.config.comm.rank && loaded.config.comm.mode == "default") {
    throw Error(
        ExitCode::bad_config,
        fmt::format("{}: comm.rank = {} makes every process that titan_train launch starts the same rank; leave "
                    "out comm.rank, comm.world_size and comm.master, or start each rank yourself without launch",
                    loaded.origins.place("comm.rank").to_string(), *loaded.config.comm.rank));
  }
  if (const int code = trains ? report_job_problems(loaded, /*is_rank=*/false) : report_config_problems(loaded)) {
    return code;
  }
  request.output_folder = std::filesystem::path(loaded.config.job.dump_folder) / "logs";
  const CheckpointSection& checkpoint = loaded.config.checkpoint;
  const std::vector<std::string>& left_out = checkpoint.exclude_from_loading;
  const bool goes_back =
      checkpoint.load_step >= 0 || std::find(left_out.begin(), left_out.end(), "train_state") != left_out.end();
  if (goes_back) request.how_to_resume = "rank 0 says above how to resume";
  if (options->restarts == 0) return launch_ranks(request);
  return launch_with_restarts(
      request, {.folder = loaded.config.job.dump_folder,
                .checkpoints = std::filesystem::path(loaded.config.job.dump_folder) / checkpoint.folder,
                .supervisor = fmt::format("titan_train launch on {}, process {}, since {}", host_name(), ::getpid(),
                                          local_time(wall_time())),
                .restarts = options->restarts,
                .host = host_name()});
}

}  // namespace titan
