// The subcommands that need LibTorch, one file each; titan/cli/commands.h has the table of all. A command parses words,
// calls the parts, and returns the process's exit code; errors are thrown as titan::Error.
#pragma once

#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/cli/commands.h"
#include "titan/config/completion.h"
#include "titan/config/problem.h"
#include "titan/config/schema.h"

namespace titan {

/// The command of this name that needs LibTorch; null if there is none.
RunCommand find_command(std::string_view name);

/// Completion words besides the schema: subcommands, the words after them, the models' flavors.
CompletionWords completion_words(const Schema& schema);

/// For a first word that is not an option: throws Error(bad_config) with the subcommand or file that was most likely
/// meant, unless the word is a file or looks like a file name.
void refuse_mistyped_command(const std::string& word);

/// The number of ranks that a launcher started. A memory estimate without a launcher is for the fewest ranks that the
/// config's degrees allow. Throws Error(launcher).
int64_t ranks_of_launch(const JobConfig& config);
/// Whether `ranks` ranks (default: those of the launch) can run the config.
ConfigCheck world_check(std::optional<int64_t> ranks = std::nullopt);

int run_train(const Schema& schema, std::span<const std::string> arguments);
int run_ranks(const Schema& schema, std::span<const std::string> arguments);
/// The words for the config among those of `ranks`, as in run_ranks.
std::vector<std::string> config_words_of_ranks(std::span<const std::string> arguments);
int run_launch(const Schema& schema, std::span<const std::string> arguments);
int run_generate(const Schema& schema, std::span<const std::string> arguments);
int run_evaluate(const Schema& schema, std::span<const std::string> arguments);

// `titan_train convert DIRECTION …`: reads command line and config, then calls tools/convert.h.

/// The words that may follow `convert`.
std::vector<std::string> convert_command_words();

/// `arguments`: what follows the word "convert". Returns the exit code; throws the conversion's errors.
int run_convert(const Schema& schema, std::span<const std::string> arguments);

// `titan_train profile summarize`: summarises a trace as text.

/// `arguments`: what follows the word. Throws Error(bad_config) for an invalid command line, Error(bad_data) for a file
/// that is not a trace.
void run_profile_command(const std::vector<std::string>& arguments, std::ostream& out);
std::vector<std::string> profile_command_words();

// `titan_train report`: one page about one or several runs.

/// `arguments`: what follows the word. Throws Error(bad_config) for an invalid command line, Error(bad_data) for a
/// folder without a run, Error(storage) for a page that cannot be written.
void run_report_command(const std::vector<std::string>& arguments, std::ostream& out);

}  // namespace titan
