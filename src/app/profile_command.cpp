#include "titan/app/commands.h"

#include <CLI/CLI.hpp>
#include <ostream>

#include "titan/cli/program.h"
#include "titan/report/trace_summary.h"

namespace titan {

void run_profile_command(const std::vector<std::string>& arguments, std::ostream& out) {
  std::string trace;
  size_t top = 12;
  CLI::App app("Look into traces of steps, as LibTorch and torch.profiler write them", "titan_train profile");
  app.footer(
      "Example:\n  titan_train profile summarize outputs/debug_model/profile_traces/iteration_10/rank0_trace.json");
  CLI::App* const summarize_words =
      app.add_subcommand("summarize", "Time by part, the operations that take most, and the gaps");
  summarize_words->add_option("TRACE", trace, "A trace in Chrome's form, .json or .json.gz")->required();
  summarize_words->add_option("--top", top, "Rows of a table")->check(CLI::Range(1, 1000))->capture_default_str();
  app.require_subcommand(1);
  if (!parse_words(app, arguments, out)) return;
  out << summary_text(summarize(read_trace(trace)), top);
}

std::vector<std::string> profile_command_words() { return {"summarize"}; }

}  // namespace titan
