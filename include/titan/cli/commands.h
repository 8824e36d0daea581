// The program's subcommands as a table, and those of them that need no tensors: help, tokenizer, data and schedule.
// They start in a twentieth of a second, because nothing here links LibTorch. titan/app/commands.h has the others.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/config/schema.h"

namespace titan {

using RunCommand = int (*)(const Schema& schema, std::span<const std::string> arguments);

struct Command {
  std::string_view name;
  std::string_view arguments;
  std::string_view purpose;
  bool takes_config;             ///< a config file and options of the schema may follow
  RunCommand without_tensors{};  ///< returns the exit code; null: the command needs LibTorch (titan/app/commands.h)
};

/// Every subcommand; training is what happens without one.
std::span<const Command> commands();

/// A command and the arguments to run it with.
struct CommandCall {
  RunCommand run;
  std::span<const std::string> arguments;
};

/// The command that `words` (the program's arguments) name, if it needs no tensors: a request for help too. The result
/// refers to `words`.
std::optional<CommandCall> find_call_without_tensors(std::span<const std::string> words);

}  // namespace titan
