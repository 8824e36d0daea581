// The subcommands that need LibTorch, one file each; titan/cli/commands.h has the table of all. A command parses words,
// calls the parts, and returns the process's exit code; errors are thrown as titan::Error.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/cli/commands.h"
#include "titan/config/problem.h"
#include "titan/config/schema.h"

namespace titan {

/// The commands that need LibTorch, for find_call.
std::span<const NamedCommand> commands_with_tensors();

/// For a first word that is not an option: throws Error(bad_config) with the subcommand or file that was most likely
/// meant, unless the word is a file or looks like a file name.
void refuse_mistyped_command(const std::string& word);

/// The number of ranks that a launcher started. A memory estimate without a launcher is for the fewest ranks that the
/// config's degrees allow. Throws Error(launcher).
int64_t ranks_of_launch(const JobConfig& config);
/// Whether `ranks` ranks (default: those of the launch) can run the config.
ConfigCheck world_check(std::optional<int64_t> ranks = std::nullopt);
/// Whether the device of this rank can run the config; for a process that becomes a rank.
ConfigCheck device_check();
/// The same for a command that only reads a model.
std::vector<Problem> reader_device_problems(const JobConfig& config, const Origins& origins);

/// Whether the first word of a command line under `launch` names a command that trains no job of the user's.
bool trains_nothing(std::span<const std::string> words);

int run_train(const Schema& schema, std::span<const std::string> arguments);
int run_ranks(const Schema& schema, std::span<const std::string> arguments);
/// The words for the config among those of `ranks`, as in run_ranks.
std::vector<std::string> config_words_of_ranks(std::span<const std::string> arguments);
int run_selftest(const Schema& schema, std::span<const std::string> arguments);
int run_netcheck(const Schema& schema, std::span<const std::string> arguments);
int run_launch(const Schema& schema, std::span<const std::string> arguments);
/// Whether a run that ended is started again, for job scripts: 75 if it is.
int run_restart(const Schema& schema, std::span<const std::string> arguments);
int run_generate(const Schema& schema, std::span<const std::string> arguments);
int run_evaluate(const Schema& schema, std::span<const std::string> arguments);

int run_convert(const Schema& schema, std::span<const std::string> arguments);
int run_profile(const Schema& schema, std::span<const std::string> arguments);
int run_report(const Schema& schema, std::span<const std::string> arguments);
/// What this program was built from and for: commit, LibTorch, CUDA, NCCL and the kernels, a line each.
int run_version(const Schema& schema, std::span<const std::string> arguments);

}  // namespace titan
