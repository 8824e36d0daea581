#include <fmt/format.h>

#include <iostream>

#include "titan/app/commands.h"
#include "titan/base/error.h"
#include "titan/config/help.h"

namespace titan {

int run_help(const Schema& schema, std::span<const std::string> arguments) {
  if (!arguments.empty() && help_text(schema, arguments[0]).empty()) {
    const std::vector<std::string> close = schema.suggest_section(arguments[0]);
    throw Error(ExitCode::bad_config,
                fmt::format("help: there is no section {}{}", arguments[0],
                            close.empty() ? "; titan_train help lists all" : "; did you mean " + close.front() + "?"));
  }
  if (arguments.empty()) {
    std::cout << "titan_train: trains Llama models\n\n";
    for (const Command& command : commands()) {
      std::cout << fmt::format("  titan_train {:<11}{:<36} {}\n", command.name, command.arguments, command.purpose);
    }
    std::cout
        << "\nOptions, given as --section.key value after the config file, or in it (--quiet: warnings and errors "
           "alone):\n\n";
  }
  std::cout << help_text(schema, arguments.empty() ? std::string_view() : std::string_view(arguments[0]));
  return 0;
}

}  // namespace titan
