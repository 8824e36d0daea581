#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <sstream>

#include "titan/base/text.h"
#include "titan/cli/commands.h"
#include "titan/plan/architecture.h"

namespace titan {
namespace {

/// The options in the help of `words`, except --help.
std::vector<std::string> options_in_help(const Schema& schema, RunCommand help, std::vector<std::string> words) {
  words.emplace_back("--help");
  std::ostringstream text;
  std::streambuf* const usual = std::cout.rdbuf(text.rdbuf());
  help(schema, words);
  std::cout.rdbuf(usual);
  std::vector<std::string> options;
  for (const std::string& line : split(text.str(), '\n')) {
    if (!line.starts_with("  -")) continue;
    for (const std::string& name : split(line.substr(2, line.find(' ', 2) - 2), ',')) {
      if (name.starts_with("--") && name != "--help") options.push_back(name);
    }
  }
  return options;
}

/// The flavors of all model families, in the order of the families' names.
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

CompletionWords completion_words(const Schema& schema) {
  CompletionWords words;
  for (const Command& command : commands()) {
    const std::vector<std::string> next = command.next ? command.next() : std::vector<std::string>();
    words.subcommands.push_back({std::string(command.name), next, command.takes_options});
    if (!command.help) continue;
    if (next.empty()) words.own_options[std::string(command.name)] = options_in_help(schema, command.help, {});
    for (const std::string& word : next) {
      words.own_options[fmt::format("{}/{}", command.name, word)] = options_in_help(schema, command.help, {word});
    }
  }
  words.values["model.flavor"] = all_flavors(schema);
  return words;
}

}  // namespace titan
