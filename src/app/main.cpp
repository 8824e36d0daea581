// titan_train: finds the subcommand, runs it, and is the only place that turns an error into text and an exit code.
#include <algorithm>
#include <iostream>

#include "titan/app/commands.h"
#include "titan/app/failure.h"
#include "titan/base/error.h"

namespace titan {
namespace {

int fail(const Failure& failure) {
  std::cout.flush();
  std::cerr << "titan_train: " << failure.text << std::endl;
  return static_cast<int>(failure.code);
}

int run(const std::vector<std::string>& words) {
  const Schema schema;
  const std::span<const std::string> arguments(words);
  auto asks_for_help = [](const std::string& word) { return word == "--help" || word == "-h"; };
  const bool asks = std::any_of(words.begin(), words.end(), asks_for_help);
  if (!words.empty()) {
    if (words[0] == "--version") {
      std::cout << "titan_train " TITAN_VERSION "\n";
      return 0;
    }
    if (asks && (words[0] == "train" || words[0] == "lr-table" || words[0] == "config")) return run_help(schema, {});
    for (const Command& command : commands()) {
      if (words[0] == command.name) return command.run(schema, arguments.subspan(1));
    }
    if (asks_for_help(words[0])) return run_help(schema, arguments.subspan(1));
  }
  if (asks) return run_help(schema, {});
  return run_train(schema, arguments);
}

}  // namespace
}  // namespace titan

int main(int argc, char** argv) {
  try {
    return titan::run({argv + 1, argv + argc});
  } catch (...) {
    return titan::fail(titan::describe_failure(std::current_exception()));
  }
}
