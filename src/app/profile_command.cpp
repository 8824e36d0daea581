#include <iostream>

#include "titan/app/commands.h"
#include "titan/cli/options.h"
#include "titan/report/trace_summary.h"

namespace titan {

int run_profile(const Schema&, std::span<const std::string> arguments) {
  const std::optional<ProfileOptions> options = parse_profile(arguments, std::cout);
  if (options) std::cout << summary_text(summarize(read_trace(options->trace)), options->top);
  return 0;
}

}  // namespace titan
