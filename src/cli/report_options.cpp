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

constexpr int kMostRuns = 8;  // the page has that many colours that differ enough

}  // namespace

std::optional<ProfileOptions> parse_profile(std::span<const std::string> arguments, std::ostream& out) {
  ProfileOptions options;
  CLI::App app("Look into traces of steps, as LibTorch and torch.profiler write them", "titan_train profile");
  app.footer(
      "Example:\n  titan_train profile summarize outputs/debug_model/profile_traces/iteration_10/rank0_trace.json");
  CLI::App* const summarize_words =
      app.add_subcommand("summarize", "Time by part, the operations that take most, and the gaps");
  summarize_words->add_option("TRACE", options.trace, "A trace in Chrome's form, .json or .json.gz")->required();
  summarize_words->add_option("--top", options.top, "Rows of a table")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.require_subcommand(1);
  if (!parse_words(app, arguments, out)) return std::nullopt;
  return options;
}

std::optional<ReportOptions> parse_report(std::span<const std::string> arguments, std::ostream& out) {
  ReportOptions options;
  CLI::App app("Make a page of the curves, the numbers and the configs of one run, or of several side by side",
               "titan_train report");
  app.add_option("RUN", options.runs, "Folders of runs (their job.dump_folder)")->required()->expected(1, kMostRuns);
  app.add_option("--out", options.output, "The page; by default RUN/report.html, of several runs ./report.html");
  app.footer("Example:\n  titan_train report outputs/mine outputs/other --out both.html");
  if (!parse_words(app, arguments, out)) return std::nullopt;
  return options;
}

}  // namespace titan
