// The subcommands that need LibTorch, one file each; titan/cli/commands.h has the table of all. A command reads words,
// calls the parts, and returns the process's exit code; what goes wrong is thrown as titan::Error.
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

/// The command of this name, one that needs LibTorch; null when there is none.
RunCommand find_command(std::string_view name);

/// What shell completion offers besides the schema: subcommands, the words after them, the models' flavors.
CompletionWords completion_words(const Schema& schema);

/// For a first word that is no option: throws Error(bad_config) with the subcommand or file that it most likely meant,
/// unless it is a file or looks like the name of one.
void refuse_mistyped_command(const std::string& word);

/// The checks of a whole config that every command which loads one applies.
std::vector<ConfigCheck> config_checks();
/// The number of ranks that a launcher started. A memory estimate without a launcher is for the fewest ranks that the
/// config's degrees allow. Throws Error(launcher).
int64_t ranks_of_launch(const JobConfig& config);
/// Whether `ranks` ranks, by default those of the launch, can run the config.
ConfigCheck world_check(std::optional<int64_t> ranks = std::nullopt);

int run_train(const Schema& schema, std::span<const std::string> arguments);
int run_plan(const Schema& schema, std::span<const std::string> arguments);
int run_ranks(const Schema& schema, std::span<const std::string> arguments);
/// What is left of the words of `ranks` for the config, as run_ranks takes them.
std::vector<std::string> config_words_of_ranks(std::span<const std::string> arguments);
int run_launch(const Schema& schema, std::span<const std::string> arguments);
int run_generate(const Schema& schema, std::span<const std::string> arguments);
int run_evaluate(const Schema& schema, std::span<const std::string> arguments);
int run_lr_table(const Schema& schema, std::span<const std::string> arguments);

// `titan_train convert DIRECTION …`: reads the command line and the config and hands over to tools/convert.h.

/// The words that may follow `convert`.
std::vector<std::string> convert_command_words();

/// `arguments`: what follows the word "convert". Returns the exit code; throws what the conversion throws.
int run_convert(const Schema& schema, std::span<const std::string> arguments);

// `titan_train profile summarize`: what a trace says, as text.

/// `arguments`: what follows the word. Throws Error(bad_config) for a command line that makes no sense, Error(bad_data)
/// for a file that is no trace.
void run_profile_command(const std::vector<std::string>& arguments, std::ostream& out);
std::vector<std::string> profile_command_words();

// `titan_train report`: one page out of the folders of one run or several.

/// `arguments`: what follows the word. Throws Error(bad_config) for a command line that makes no sense, Error(bad_data)
/// for a folder that holds no run, Error(storage) for a page that cannot be written.
void run_report_command(const std::vector<std::string>& arguments, std::ostream& out);

}  // namespace titan
