#include "titan/app/program.h"

#include <signal.h>

#include <algorithm>
#include <iostream>
#include <span>

#include "titan/app/commands.h"
#include "titan/app/failure.h"
#include "titan/app/version.h"

namespace titan {
namespace {

int fail(const Failure& failure) {
  std::cout.flush();
  std::cerr << "titan_train: " << failure.text << std::endl;
  return static_cast<int>(failure.code);
}

int dispatch(const std::vector<std::string>& words) {
  const Schema schema;
  const std::span<const std::string> arguments(words);
  auto asks_for_help = [](const std::string& word) { return word == "--help" || word == "-h"; };
  const bool asks = std::any_of(words.begin(), words.end(), asks_for_help);
  if (!words.empty()) {
    if (words[0] == "--version") {
      std::cout << version_text();
      return 0;
    }
    if (asks && (words[0] == "train" || words[0] == "lr-table")) return run_help(schema, {});
    for (const Command& command : commands()) {
      if (words[0] == command.name) return command.run(schema, arguments.subspan(1));
    }
    if (asks_for_help(words[0])) return run_help(schema, arguments.subspan(1));
  }
  if (asks) return run_help(schema, {});
  return run_train(schema, arguments);
}

}  // namespace

int exit_code_of(const std::function<int()>& act) {
  try {
    return act();
  } catch (...) {
    return fail(describe_failure(std::current_exception()));
  }
}

int run_program(const std::vector<std::string>& words) {
  // A file that reaches its size limit is a failed write like that of a full disk, not a reason to die.
  ::signal(SIGXFSZ, SIG_IGN);
  return exit_code_of([&words] { return dispatch(words); });
}

}  // namespace titan
