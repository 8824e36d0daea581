#include "titan/cli/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <ostream>

#include "titan/base/error.h"
#include "titan/cli/program.h"

namespace titan {
namespace {

// More than the cores of a host: a typo must not start so many processes that the host stands still.
constexpr int64_t kMostRanksOfHost = 1024;

/// CLI11 takes an empty word for 0, and a number that is too large for the largest.
CLI::Validator number_of_restarts() {
  const auto check = [](const std::string& word) -> std::string {
    int64_t value = 0;
    const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), value);
    const bool fits = problem == std::errc() && end == word.data() + word.size() && value >= 0;
    return fits ? "" : fmt::format("\"{}\" is no number of restarts", word);
  };
  return {check, "from 0", "number_of_restarts"};
}

/// Other launchers' options for the number of processes. CLI11 would pass them on to the ranks, and report that --ranks
/// is missing.
void refuse_other_launchers_words(std::span<const std::string> arguments) {
  constexpr std::array<std::string_view, 5> kTheirs{"--nproc-per-node", "--nproc", "--num-processes", "--np", "-np"};
  for (const std::string& word : arguments) {
    if (word == "--" || word.ends_with(".toml")) return;
    std::string option = word.substr(0, word.find('='));
    std::replace(option.begin(), option.end(), '_', '-');
    if (std::find(kTheirs.begin(), kTheirs.end(), option) == kTheirs.end()) continue;
    throw Error(ExitCode::bad_config, fmt::format("launch has no option {}; write -n N for N processes "
                                                  "(titan_train launch --help)",
                                                  word.substr(0, word.find('='))));
  }
}

}  // namespace

std::optional<LaunchOptions> parse_launch(std::span<const std::string> arguments, std::ostream& out) {
  refuse_other_launchers_words(arguments);
  LaunchOptions options;
  CLI::App app("Train with several processes on this machine", "titan_train launch");
  app.add_option("-n,--ranks", options.ranks, "Number of processes")
      ->required()
      ->check(CLI::Range(int64_t{1}, kMostRanksOfHost));
  app.add_option("--log-rank", options.log_rank, "Ranks whose log is shown: a comma list, or all")
      ->envname("LOG_RANK")
      ->capture_default_str();
  app.add_option("--restarts", options.restarts,
                 "Start a run that fails again from its last checkpoint, at most so often")
      ->check(number_of_restarts())
      ->capture_default_str();
  // From the first unknown word on, all words are for the ranks: CLI11 would take their options for its own.
  app.prefix_command();
  app.footer(
      "A config file and --section.key options follow, as for training; or ranks, selftest, netcheck, generate or "
      "evaluate and their options.\n\n"
      "Examples:\n"
      "  titan_train launch -n 2 configs/debug_model.toml\n"
      "  titan_train launch -n 8 --restarts 100 configs/llama3_8b.toml --checkpoint.enable\n"
      "  titan_train launch -n 2 generate outputs/mine --prompt Once --parallelism.tensor_parallel_degree=2");
  if (!parse_words(app, arguments, out)) return std::nullopt;
  options.rest = app.remaining();
  if (!options.rest.empty() && options.rest[0] == "--") options.rest.erase(options.rest.begin());
  return options;
}

std::optional<RestartOptions> parse_restart(std::span<const std::string> arguments, std::ostream& out) {
  RestartOptions options;
  CLI::App app("Decide for a job script whether a run that ended is started again: exit code 75 if it is",
               "titan_train restart");
  app.add_option("--exit-code", options.exit_code, "Exit code with which the ranks ended")
      ->required()
      ->check(CLI::Range(0, 255));
  app.add_option(
         "--began", options.began,
         "When the ranks were started, as date +%s prints it: what an older run left in the folder is not theirs")
      ->check(CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max()));
  app.add_option("--restarts", options.restarts, "The most restarts of this supervisor")
      ->check(number_of_restarts())
      ->capture_default_str();
  app.add_option("--supervisor", options.supervisor, "Name of the job: attempts of others do not count")
      ->capture_default_str();
  app.prefix_command();
  app.footer(
      "The config file and --section.key options of the run follow. A line says what is done, from which step, and "
      "what "
      "is lost.\n\n"
      "Example:\n  titan_train restart --exit-code 74 --supervisor job-7 configs/llama3_8b.toml --checkpoint.enable");
  if (!parse_words(app, arguments, out)) return std::nullopt;
  options.rest = app.remaining();
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

std::optional<SelftestWords> parse_selftest(std::span<const std::string> arguments, std::ostream& out) {
  SelftestWords options;
  CLI::App app("Train a small model in every layout that the ranks at hand allow, and compare with one process",
               "titan_train selftest");
  app.add_flag("--json", options.json, "The results as JSON, nothing else");
  app.allow_extras();
  app.footer(
      "Options such as --training.device or --comm.… may follow. Exit code 77 if a row fails.\n\n"
      "Example:\n  titan_train launch -n 4 selftest");
  if (!parse_words(app, arguments, out)) return std::nullopt;
  options.rest = app.remaining();
  return options;
}

namespace {

/// The error message for the word; CLI::Range accepts nan for a number in its range.
std::string expect_factor(const std::string& word) {
  double number = 0;
  const bool fits = CLI::detail::lexical_cast(word, number) && number >= 1.01 && number <= 1000;
  return fits ? std::string() : fmt::format("{} is not a number from 1.01 to 1000", word);
}

}  // namespace

std::optional<NetcheckWords> parse_netcheck(std::span<const std::string> arguments, std::ostream& out) {
  NetcheckWords options;
  CLI::App app("Measure the collectives of every mesh axis and exchanges pair by pair, and name what is slow",
               "titan_train netcheck");
  app.add_flag("--json", options.json, "The results as JSON, nothing else");
  app.add_option("--hardware", options.hardware,
                 "Compare with the links of this GPU: a name from titan_train plan --gpu's list, or a TOML file");
  app.add_option("--largest-mib", options.largest_mib, "Size of the largest messages, in MiB")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--slow", options.slow, "Name what is so many times slower than the median of its equals")
      ->check(CLI::Validator(expect_factor, ""))
      ->capture_default_str();
  app.allow_extras();
  app.footer(
      "A config file and --parallelism.… options may follow: their axes are measured. Exit code 69 if something is "
      "slow.\n\n"
      "Example:\n  titan_train launch -n 4 netcheck --parallelism.tensor_parallel_degree=2");
  if (!parse_words(app, arguments, out)) return std::nullopt;
  options.rest = app.remaining();
  return options;
}

}  // namespace titan
