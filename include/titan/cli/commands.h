// The program's subcommands as a table, and those of them that need no tensors: help, tokenizer, data and schedule.
// They start at once, because nothing here links LibTorch. titan/app/commands.h has the others.
#pragma once

#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/config/schema.h"
#include "titan/schedule/picture.h"

namespace titan {

using RunCommand = int (*)(const Schema& schema, std::span<const std::string> arguments);

struct Command {
  std::string_view name;
  std::string_view arguments;
  std::string_view purpose;
  bool takes_options;            ///< options of the schema may follow, and a config file or a folder
  RunCommand without_tensors{};  ///< returns the exit code; null: the command needs LibTorch (titan/app/commands.h)
};

/// Every subcommand; training is what happens without one.
std::span<const Command> commands();

/// A command and the arguments to run it with.
struct CommandCall {
  RunCommand run;
  std::span<const std::string> arguments;
};

/// The program's arguments: `help COMMAND …` as `COMMAND … --help`, anything else as it is. Where a section of the
/// config has the name of a command too, `help` shows both.
std::vector<std::string> program_words(std::vector<std::string> words);

/// The command that `words` (the program's arguments) name, if it needs no tensors: a request for help too. The result
/// refers to `words`.
std::optional<CommandCall> find_call_without_tensors(std::span<const std::string> words);

// `titan_train data tokenize|stats|peek`: reads the command line and hands over to data/tokenize.h and
// data/tokenizer_tools.h. Its options are its own, not the schema's: a corpus is made ready before there is a job.
// Knows no tensors.

/// The first words that run_data_command knows.
std::vector<std::string> data_command_words();

/// `arguments`: what follows the word "data". Results go to `out`. Throws Error: bad_config for a wrong command line,
/// bad_data for wrong files, storage for an output that cannot be written.
void run_data_command(const std::vector<std::string>& arguments, std::ostream& out);

// `titan_train schedule`: shows a pipeline schedule, its bubble and what its ranks keep, as text, picture and CSV.
// Reads the command line and hands over to the part schedule. Its options are its own: a schedule needs no job.

/// `arguments`: what follows the word "schedule". Shows on `out`, for a terminal as `terminal` says, and writes the
/// files that are asked for. Throws Error(bad_config) for a wrong command line, an illegal shape or a table that cannot
/// run, with all problems at once.
void run_schedule_command(const std::vector<std::string>& arguments, const GridOptions& terminal, std::ostream& out);

// `titan_train tokenizer train|encode|decode|info`: reads the command line and hands over to data/tokenizer_tools.h.
// Its options are its own, not the schema's: a tokenizer is made before there is a job. Knows no tensors.

/// The first words that run_tokenizer_command knows.
std::vector<std::string> tokenizer_command_words();

/// `arguments`: what follows the word "tokenizer". Text is read from the named files or from `in`; results go to `out`.
/// Throws Error: bad_config for a wrong command line, bad_data for wrong files.
void run_tokenizer_command(const std::vector<std::string>& arguments, std::istream& in, std::ostream& out);

}  // namespace titan
