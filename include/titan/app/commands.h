// The program's subcommands, one file each. A command reads words, calls the parts, and returns the process's exit
// code; what goes wrong is thrown as titan::Error and turned into text by main alone.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/config/problem.h"
#include "titan/config/schema.h"

namespace titan {

struct Command {
  std::string_view name;
  std::string_view arguments;
  std::string_view purpose;
  int (*run)(const Schema& schema, std::span<const std::string> arguments);
};

/// Every subcommand; training is what happens without one.
std::span<const Command> commands();

/// The checks of a whole config that every command which loads one applies.
std::vector<ConfigCheck> config_checks();

int run_train(const Schema& schema, std::span<const std::string> arguments);
int run_plan(const Schema& schema, std::span<const std::string> arguments);
int run_lr_table(const Schema& schema, std::span<const std::string> arguments);
int run_help(const Schema& schema, std::span<const std::string> arguments);

}  // namespace titan
