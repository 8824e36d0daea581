#include "titan/app/program.h"

#include "titan/app/commands.h"
#include "titan/cli/commands.h"
#include "titan/cli/program.h"

namespace titan {

int run_program(const std::vector<std::string>& given) {
  const std::vector<std::string> words = program_words(given);
  const auto dispatch = [&words](const Schema& schema) {
    const auto call = find_call(words, commands_with_tensors());
    TITAN_CHECK(call, words.empty() ? "" : words[0]);
    return call->run(schema, call->arguments);
  };
  return run_as_program(words, dispatch, describe_failure);
}

}  // namespace titan
