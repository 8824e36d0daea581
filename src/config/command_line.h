// The words of a command line as option assignments. Private to config; CLI11 takes the words apart, this part adds
// what it lacks: unique prefixes, `-` for `_`, every problem at once, nearest spellings.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "titan/config/problem.h"
#include "titan/config/schema.h"

namespace titan::detail {

struct CommandLineWord {
  std::string key;    ///< of an option or of a former spelling, as the schema has it
  std::string value;  ///< as typed; "true" or "false" for a bare flag
  Place place;        ///< names the word as typed
};

struct CommandLine {
  std::vector<CommandLineWord> words;      ///< in order; a repeated key appears again
  std::optional<std::string> config_file;  ///< the word that is no option
  std::vector<Problem> problems;
};

CommandLine read_command_line(const Schema& schema, std::span<const std::string> arguments);

}  // namespace titan::detail
