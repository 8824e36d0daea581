// `titan_train config …` and `titan_train completion …`: what can be asked about configs without training.
// Results go to `output`, problems and notes to `errors`; the return value is the exit code of the process. Knows the
// schema and no other part: what those add (checks, values for completion) is handed in.
#pragma once

#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "titan/config/completion.h"
#include "titan/config/load.h"
#include "titan/config/schema.h"

namespace titan {

/// The first words that config_command knows.
std::vector<std::string> config_command_words();

/// `show [FILE] [overrides] [--json] | explain KEY [FILE] | diff A B | docs`; `arguments` are the words after `config`.
/// `checks` are further checks of a whole config, the same as those of a training run. `diff` returns 0 when no option
/// differs and 1 when one does.
int config_command(const Schema& schema, std::span<const std::string> arguments, std::span<const ConfigCheck> checks,
                   std::ostream& output, std::ostream& errors);

/// `bash | zsh`; `words` are those the program knows besides the schema's.
int completion_command(const Schema& schema, std::span<const std::string> arguments, const CompletionWords& words,
                       std::ostream& output, std::ostream& errors);

/// "3 problems in the configuration:" and a line for each.
void print_problems(std::ostream& errors, const std::vector<Problem>& problems);

}  // namespace titan
