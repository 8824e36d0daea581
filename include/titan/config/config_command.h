// `titan_train config …` and `titan_train completion …`: what can be asked about configs without training.
// Results go to `output`, problems and notes to `errors`; the return value is the exit code of the process.
#pragma once

#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "titan/config/load.h"
#include "titan/config/schema.h"

namespace titan {

/// `show [FILE] [overrides] [--json] | explain KEY [FILE] | diff A B | docs`; `arguments` are the words after `config`.
/// `checks` are further checks of a whole config, the same as those of a training run.
int config_command(const Schema& schema, std::span<const std::string> arguments, std::span<const ConfigCheck> checks,
                   std::ostream& output, std::ostream& errors);

/// `bash | zsh`; `subcommands` are the first words the program knows.
int completion_command(const Schema& schema, std::span<const std::string> arguments,
                       std::span<const std::string> subcommands, std::ostream& output, std::ostream& errors);

/// "3 problems in the configuration:" and a line for each.
void print_problems(std::ostream& errors, const std::vector<Problem>& problems);

}  // namespace titan
