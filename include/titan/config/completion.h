// Shell completion for titan_train: subcommands and their arguments, options of the schema, and the values of options
// with a fixed set. The script is generated once from the schema: completing a word does not run the program.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "titan/config/schema.h"

namespace titan {

/// Words of the program that are not in the schema.
struct CompletionWords {
  struct Subcommand {
    std::string name;
    std::vector<std::string> next;  ///< words that may follow it, e.g. show and diff after config
    bool takes_options = false;     ///< may be followed by options of the schema and by a config file or a folder
  };
  std::vector<Subcommand> subcommands;
  /// A command's own options, by the command's name, or by that and the next word ("data/peek").
  std::map<std::string, std::vector<std::string>> own_options;
  /// Values of options that another part defines, e.g. model.flavor, by key.
  std::map<std::string, std::vector<std::string>> values;
};

/// A script for `shell`, "bash" or "zsh"; empty for any other shell.
std::string completion_script(const Schema& schema, std::string_view shell, const CompletionWords& words);

}  // namespace titan
