#include "titan/app/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/cli/commands.h"
#include "titan/config/config_command.h"
#include "titan/config/load.h"
#include "titan/distributed/launch_environment.h"
#include "titan/job/checks.h"
#include "titan/job/job.h"
#include "titan/plan/architecture.h"

namespace titan {
namespace {

int run_completion(const Schema& schema, std::span<const std::string> arguments) {
  return completion_command(schema, arguments, completion_words(schema), std::cout, std::cerr);
}

int run_profile(const Schema&, std::span<const std::string> arguments) {
  run_profile_command({arguments.begin(), arguments.end()}, std::cout);
  return 0;
}

int run_report(const Schema&, std::span<const std::string> arguments) {
  run_report_command({arguments.begin(), arguments.end()}, std::cout);
  return 0;
}

std::vector<std::string> words_after(std::string_view command, const Schema& schema) {
  if (command == "config") return config_command_words();
  if (command == "tokenizer") return tokenizer_command_words();
  if (command == "data") return data_command_words();
  if (command == "profile") return profile_command_words();
  if (command == "convert") return convert_command_words();
  if (command == "completion") return {"bash", "zsh"};
  std::vector<std::string> words;
  if (command == "help") {
    for (const Command& one : commands()) words.emplace_back(one.name);
    for (const SectionInfo& section : schema.sections()) words.push_back(section.name);
  }
  return words;
}

/// Commands whose help lists options of the schema, or none.
constexpr std::array<std::string_view, 5> kOfTheSchema{"train", "config", "lr-table", "completion", "help"};

/// The options in the help of `COMMAND NEXT…`, except --help.
std::vector<std::string> options_in_help(const Schema& schema, RunCommand run, std::vector<std::string> words) {
  words.emplace_back("--help");
  std::ostringstream help;
  std::streambuf* const usual = std::cout.rdbuf(help.rdbuf());
  run(schema, words);
  std::cout.rdbuf(usual);
  std::vector<std::string> options;
  for (const std::string& line : split(help.str(), '\n')) {
    if (!line.starts_with("  -")) continue;
    for (const std::string& name : split(line.substr(2, line.find(' ', 2) - 2), ',')) {
      if (name.starts_with("--") && name != "--help") options.push_back(name);
    }
  }
  return options;
}

/// Of all families, in the order of their names.
std::vector<std::string> all_flavors(const Schema& schema) {
  std::vector<std::string> all;
  for (const std::string& name : schema.find("model.name")->choice_list()) {
    for (const std::string& flavor : find_architecture(name)->flavors(name)) {
      if (std::find(all.begin(), all.end(), flavor) == all.end()) all.push_back(flavor);
    }
  }
  return all;
}

}  // namespace

RunCommand find_command(std::string_view name) {
  static constexpr std::pair<std::string_view, RunCommand> kAll[] = {
      {"train", run_train},     {"launch", run_launch},     {"ranks", run_ranks},
      {"convert", run_convert}, {"generate", run_generate}, {"evaluate", run_evaluate},
      {"profile", run_profile}, {"report", run_report},     {"completion", run_completion}};
  for (const auto& [known, run] : kAll) {
    if (name == known) return run;
  }
  return nullptr;
}

CompletionWords completion_words(const Schema& schema) {
  CompletionWords words;
  for (const Command& command : commands()) {
    const std::vector<std::string> next = words_after(command.name, schema);
    words.subcommands.push_back({std::string(command.name), next, command.takes_options});
    if (std::find(kOfTheSchema.begin(), kOfTheSchema.end(), command.name) != kOfTheSchema.end()) continue;
    const RunCommand run = command.without_tensors ? command.without_tensors : find_command(command.name);
    if (next.empty()) words.own_options[std::string(command.name)] = options_in_help(schema, run, {});
    for (const std::string& word : next) {
      words.own_options[fmt::format("{}/{}", command.name, word)] = options_in_help(schema, run, {word});
    }
  }
  words.values["model.flavor"] = all_flavors(schema);
  return words;
}

void refuse_mistyped_command(const std::string& word) {
  std::error_code ignored;
  const bool names_a_file = word.find_first_of("./") != std::string::npos || std::filesystem::exists(word, ignored);
  if (word.starts_with("-") || names_a_file) return;
  std::vector<std::string> names;
  for (const Command& command : commands()) names.emplace_back(command.name);
  const std::vector<std::string> close = nearest(word, names, 1);
  const std::string remedy = close.empty() ? config_file_remedy(word) : fmt::format("did you mean {}?", close.front());
  throw Error(ExitCode::bad_config,
              fmt::format("{} is neither a subcommand nor a config file; {} (titan_train help lists all subcommands)",
                          word, remedy));
}

int64_t ranks_of_launch(const JobConfig& config) {
  const Launch launch = detect_launch(config.comm, process_context());
  const bool alone = launch.launcher.empty() && !launch.fake;
  return config.memory_estimation.enable && alone ? fewest_ranks(config) : launch.size;
}

ConfigCheck world_check(std::optional<int64_t> ranks) {
  return [ranks](const JobConfig& config, const Origins& origins) {
    try {
      return world_problems(config, origins, ranks ? *ranks : ranks_of_launch(config));
    } catch (const Error&) {
      return std::vector<Problem>();  // bad launcher variables: reported by the rendezvous
    }
  };
}

}  // namespace titan
