// The table of the program's subcommands, and the ones that need no tensors: help, config, tokenizer, data, plan,
// schedule and lr-table. These start fast, because this part does not link LibTorch. titan/app/commands.h has the
// others.
#pragma once

#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/config/completion.h"
#include "titan/config/schema.h"
#include "titan/schedule/picture.h"

namespace titan {

using RunCommand = int (*)(const Schema& schema, std::span<const std::string> arguments);

struct Command {
  std::string_view name;
  std::string_view arguments;
  std::string_view purpose;
  bool takes_options;  ///< may be followed by options of the schema and by a config file or a folder
  RunCommand run;      ///< returns the exit code; null: the command needs LibTorch (titan/app/commands.h)
  RunCommand help;     ///< prints the help that its words ask for; null: that of the schema
  std::vector<std::string> (*next)() = nullptr;  ///< the words that may follow
};

struct NamedCommand {
  std::string_view name;
  RunCommand run;
};

/// All subcommands; without one, the program trains.
std::span<const Command> commands();

/// A command and the arguments to run it with.
struct CommandCall {
  RunCommand run;
  std::span<const std::string> arguments;
};

/// Rewrites the program's arguments `help COMMAND …` to `COMMAND … --help`; leaves others unchanged. If a section of
/// the config has the same name as a command, `help` shows both.
std::vector<std::string> program_words(std::vector<std::string> words);

/// The command that `words` (the program's arguments) name; help requests included. `with_tensors`: the commands that
/// need LibTorch. Nothing for a command that needs LibTorch and is not among these. The result refers to `words`.
std::optional<CommandCall> find_call(std::span<const std::string> words,
                                     std::span<const NamedCommand> with_tensors = {});

/// What shell completion offers beside the schema: subcommands, the words after them and their own options, flavors.
CompletionWords completion_words(const Schema& schema);

// `titan_train data tokenize|stats|peek`: parses the command line and calls corpus/tokenize.h and corpus/inspect.h.
// Has its own options instead of the schema's, because a corpus is prepared before a job exists. Knows no tensors.

/// The subcommands of run_data_command.
std::vector<std::string> data_command_words();

/// `arguments`: the words after "data". Results go to `out`. Throws Error: bad_config for an invalid command line,
/// bad_data for invalid files, storage for an output that cannot be written.
void run_data_command(const std::vector<std::string>& arguments, std::ostream& out);

// `titan_train schedule`: shows a pipeline schedule, its bubble and what its ranks store, as text, picture and CSV.
// Parses the command line and calls the part schedule. Has its own options: a schedule needs no job.

/// `arguments`: the words after "schedule". Prints to `out`, formatted as `terminal` specifies, and writes the
/// requested files. Throws Error(bad_config) for an invalid command line, an invalid shape or a table that cannot run,
/// with all problems at once.
void run_schedule_command(const std::vector<std::string>& arguments, const GridOptions& terminal, std::ostream& out);

// `titan_train tokenizer train|encode|decode|info`: parses the command line and calls text/tokenizer_tools.h and
// corpus/train_tokenizer.h. Has its own options instead of the schema's, because a tokenizer is made before a job
// exists. Knows no tensors.

/// The subcommands of run_tokenizer_command.
std::vector<std::string> tokenizer_command_words();

/// `arguments`: the words after "tokenizer". Reads text from the named files or from `in`; results go to `out`. Throws
/// Error: bad_config for an invalid command line, bad_data for invalid files.
void run_tokenizer_command(const std::vector<std::string>& arguments, std::istream& in, std::ostream& out);

// `titan_train plan`: shows what a config does on any number of ranks, without starting one.

int run_plan(const Schema& schema, std::span<const std::string> arguments);

// `titan_train lr-table`: the learning rate of every step.

int run_lr_table(const Schema& schema, std::span<const std::string> arguments);

}  // namespace titan
