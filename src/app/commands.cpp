#include "titan/app/commands.h"

#include <array>
#include <iostream>

#include "titan/app/tokenizer_command.h"
#include "titan/config/config_command.h"
#include "titan/train/job.h"

namespace titan {
namespace {

int run_config(const Schema& schema, std::span<const std::string> arguments) {
  return config_command(schema, arguments, config_checks(), std::cout, std::cerr);
}

int run_completion(const Schema& schema, std::span<const std::string> arguments) {
  std::vector<std::string> names;
  for (const Command& command : commands()) names.emplace_back(command.name);
  return completion_command(schema, arguments, names, std::cout, std::cerr);
}

int run_tokenizer(const Schema&, std::span<const std::string> arguments) {
  run_tokenizer_command({arguments.begin(), arguments.end()}, std::cin, std::cout);
  return 0;
}

}  // namespace

std::span<const Command> commands() {
  static constexpr std::array<Command, 8> all{{
      {"train", "[FILE] [--section.key value]…", "train; the word itself may be left out", run_train},
      {"launch", "-n N [FILE] [--section.key value]…", "train with N processes on this machine", run_launch},
      {"ranks", "[--hold S] [FILE] …", "see whether the ranks of a run find each other", run_ranks},
      {"config", "show|explain|diff|docs …", "ask about options and configs", run_config},
      {"tokenizer", "train|encode|decode|info …", "make and use tokenizers", run_tokenizer},
      {"lr-table", "[FILE] [--section.key value]…", "print the learning rate of every step", run_lr_table},
      {"completion", "bash|zsh", "print a shell completion script", run_completion},
      {"help", "[SECTION]", "this text, or the options of a section", run_help},
  }};
  return all;
}

std::vector<ConfigCheck> config_checks() { return {check_model}; }

}  // namespace titan
