#include "titan/cli/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <ostream>

#include "titan/base/error.h"
#include "titan/cli/program.h"

namespace titan {
namespace {

// More than the cores of a host: a typo must not start so many processes that the host stands still.
constexpr int64_t kMostRanksOfHost = 1024;

}  // namespace

std::optional<LaunchOptions> parse_launch(std::span<const std::string> arguments, std::ostream& out) {
  LaunchOptions options;
  CLI::App app("Train with several processes on this machine", "titan_train launch");
  app.add_option("-n,--ranks", options.ranks, "Number of processes")
      ->required()
      ->check(CLI::Range(int64_t{1}, kMostRanksOfHost));
  app.add_option("--log-rank", options.log_rank, "Ranks whose log is shown: a comma list, or all")
      ->envname("LOG_RANK")
      ->capture_default_str();
  // From the first unknown word on, all words are for the ranks: CLI11 would take their options for its own.
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

std::optional<RanksOptions> parse_ranks(std::span<const std::string> arguments, std::ostream& out) {
  RanksOptions options;
  CLI::App app("Run the rendezvous, list the ranks and check that they match", "titan_train ranks");
  app.add_option("--hold", options.hold_seconds, "Then stay for so many seconds, watching each other");
  app.add_option("--fail", options.failing_ranks,
                 "These ranks fail after the check, to see what the launcher makes of it")
      ->delimiter(',')
      ->allow_extra_args(false);  // else CLI11 would add the config's name, which follows, to the list
  app.allow_extras();
  app.footer(
      "A config file and --section.key options may follow, as for training.\n\n"
      "Example:\n  titan_train launch -n 2 ranks --hold 5");
  if (!parse_words(app, arguments, out)) return std::nullopt;
  options.rest = app.remaining();
  return options;
}

}  // namespace titan
