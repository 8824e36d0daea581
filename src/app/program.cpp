#include "titan/app/program.h"

#include <iostream>

#include "titan/app/commands.h"
#include "titan/cli/commands.h"
#include "titan/cli/program.h"

namespace titan {

int run_program(const std::vector<std::string>& given) {
  const std::vector<std::string> words = program_words(given);
  const auto dispatch = [&words](const Schema& schema) {
    if (const auto call = find_call_without_tensors(words)) return call->run(schema, call->arguments);
    const std::span<const std::string> arguments(words);
    if (!words.empty() && words[0] == "--version") {
      std::cout << version_text();
      return 0;
    }
    const RunCommand run = words.empty() ? nullptr : find_command(words[0]);
    return run ? run(schema, arguments.subspan(1)) : run_train(schema, arguments);
  };
  return run_as_program(words, dispatch, describe_failure);
}

}  // namespace titan
