#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <iostream>

#include "checkpoint_job.h"
#include "titan/app/commands.h"
#include "titan/app/program.h"
#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/cli/program.h"
#include "titan/config/load.h"
#include "titan/job/checks.h"
#include "titan/tools/launch.h"

namespace titan {
namespace {

constexpr int64_t kMostRanksOfHost = 1024;

struct LaunchOptions {
  int64_t ranks = 0;
  std::string log_rank = "0";
  std::vector<std::string> rest;  // command line of the ranks
};

std::optional<LaunchOptions> parse_launch(std::span<const std::string> arguments, std::ostream& out) {
  LaunchOptions options;
  CLI::App app("Train with several processes on this machine", "titan_train launch");
  app.add_option("-n,--ranks", options.ranks, "Number of processes")
      ->required()
      ->check(CLI::Range(int64_t{1}, kMostRanksOfHost));
  app.add_option("--log-rank", options.log_rank, "Ranks whose log is shown: a comma list, or all")
      ->envname("LOG_RANK")
      ->capture_default_str();
  // From the first unknown word on, all words are for the ranks.
  app.prefix_command();
  app.footer(
      "A config file and --section.key options follow, as for training; or ranks, generate or evaluate and "
      "their options.\n\n"
      "Examples:\n"
      "  titan_train launch -n 2 configs/debug_model.toml\n"
      "  titan_train launch -n 2 generate outputs/mine --prompt Once --parallelism.tensor_parallel_degree=2");
  if (!parse_words(app, arguments, out)) return std::nullopt;
  options.rest = app.remaining();
  if (!options.rest.empty() && options.rest[0] == "--") options.rest.erase(options.rest.begin());
  return options;
}

/// "0,2" or "all"; empty for all.
std::set<int64_t> parse_ranks(const std::string& text, int64_t ranks) {
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

}  // namespace

int run_launch(const Schema& schema, std::span<const std::string> arguments) {
  const std::optional<LaunchOptions> options = parse_launch(arguments, std::cout);
  if (!options) return 0;
  LaunchRequest request;
  request.ranks = options->ranks;
  request.program = std::filesystem::read_symlink("/proc/self/exe");
  request.arguments = options->rest;
  request.shown_ranks = parse_ranks(options->log_rank, options->ranks);
  if (!request.arguments.empty() && (request.arguments[0] == "generate" || request.arguments[0] == "evaluate")) {
    // These commands have a config of their own.
    request.output_folder = "outputs/logs";
    request.output_is_result = true;
    request.shown_ranks = {0};
    return launch_ranks(request);
  }
  // Reports problems of the job once, before any rank is started; the ranks read the config again.
  const bool trains = request.arguments.empty() || request.arguments[0] != "ranks";
  std::vector<std::string> words = request.arguments;
  if (!trains || (!words.empty() && words[0] == "train")) words.erase(words.begin());
  if (!trains) words = config_words_of_ranks(words);
  if (!words.empty()) refuse_mistyped_command(words[0]);
  std::vector<ConfigCheck> checks = job_checks();
  if (trains) checks.push_back(world_check(options->ranks));
  const LoadedConfig loaded = load_run_job(schema, words, checks);
  if (loaded.config.comm.rank && loaded.config.comm.mode == "default") {
    throw Error(
        ExitCode::bad_config,
        fmt::format("{}: comm.rank = {} makes every process that titan_train launch starts the same rank; leave "
                    "out comm.rank, comm.world_size and comm.master, or start each rank yourself without launch",
                    loaded.origins.place("comm.rank").to_string(), *loaded.config.comm.rank));
  }
  // This process is not a rank.
  if (const int code = trains ? report_job_problems(loaded, /*is_rank=*/false) : report_config_problems(loaded)) {
    return code;
  }
  request.output_folder = std::filesystem::path(loaded.config.job.dump_folder) / "logs";
  const CheckpointSection& checkpoint = loaded.config.checkpoint;
  const std::vector<std::string>& left_out = checkpoint.exclude_from_loading;
  const bool goes_back =
      checkpoint.load_step >= 0 || std::find(left_out.begin(), left_out.end(), "train_state") != left_out.end();
  if (goes_back) request.how_to_resume = "rank 0 says above how to resume";
  return launch_ranks(request);
}

}  // namespace titan
