// The program's subcommands, one file each. A command reads words, calls the parts, and returns the process's exit
// code; what goes wrong is thrown as titan::Error and turned into text by main alone.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/config/completion.h"
#include "titan/config/problem.h"
#include "titan/config/schema.h"

namespace titan {

struct Command {
  std::string_view name;
  std::string_view arguments;
  std::string_view purpose;
  bool takes_config;  ///< a config file and options of the schema may follow
  int (*run)(const Schema& schema, std::span<const std::string> arguments);
};

/// Every subcommand; training is what happens without one.
std::span<const Command> commands();

/// What shell completion offers besides the schema: subcommands, the words after them, the models' flavors.
CompletionWords completion_words(const Schema& schema);

/// For a first word that is no option: throws Error(bad_config) with the subcommand or file that it most likely meant,
/// unless it is a file or looks like the name of one.
void refuse_mistyped_command(const std::string& word);

/// The checks of a whole config that every command which loads one applies.
std::vector<ConfigCheck> config_checks();
/// Whether so many ranks can run the config; none: as many as a launcher says to this process.
ConfigCheck world_check(std::optional<int64_t> ranks = std::nullopt);

int run_train(const Schema& schema, std::span<const std::string> arguments);
int run_plan(const Schema& schema, std::span<const std::string> arguments);
int run_ranks(const Schema& schema, std::span<const std::string> arguments);
/// What is left of the words of `ranks` for the config, as run_ranks takes them.
std::vector<std::string> config_words_of_ranks(std::span<const std::string> arguments);
int run_launch(const Schema& schema, std::span<const std::string> arguments);
int run_lr_table(const Schema& schema, std::span<const std::string> arguments);
int run_help(const Schema& schema, std::span<const std::string> arguments);

}  // namespace titan
