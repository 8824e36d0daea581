// `titan_train config …` and `titan_train completion …`: information about configs without training. Results go to
// `output`, problems and notes to `errors`; the return value is the exit code of the process. Knows only the schema;
// checks and completion values of other parts are arguments.
#pragma once

#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "titan/config/completion.h"
#include "titan/config/load.h"
#include "titan/config/schema.h"

namespace titan {

/// The subcommands of config_command.
std::vector<std::string> config_command_words();

/// `show [FILE] [overrides] [--json] | explain KEY [FILE] | diff A B | docs`; `arguments` are the words after `config`.
/// `checks` are the additional checks of a whole config that a training run also makes. `diff` returns 0 if no option
/// differs, else 1.
int config_command(const Schema& schema, std::span<const std::string> arguments, std::span<const ConfigCheck> checks,
                   std::ostream& output, std::ostream& errors);

/// `bash | zsh`; `words`: the program's words that are not in the schema.
int completion_command(const Schema& schema, std::span<const std::string> arguments, const CompletionWords& words,
                       std::ostream& output, std::ostream& errors);

/// "3 problems in the configuration:" and a line per problem.
void print_problems(std::ostream& errors, const std::vector<Problem>& problems);

}  // namespace titan
