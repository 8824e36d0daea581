// Shell completion for titan_train: subcommands and their words, options of the schema, and the values of options that
// have a fixed set. The script is text made once from the schema: nothing of the program runs while somebody types.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "titan/config/schema.h"

namespace titan {

/// What the program knows and the schema does not.
struct CompletionWords {
  struct Subcommand {
    std::string name;
    std::vector<std::string> next;  ///< words that may follow it, such as show and diff after config
    bool takes_options = false;     ///< options of the schema may follow, and a config file or a folder
  };
  std::vector<Subcommand> subcommands;
  /// Options of a command's own, by its name, or by that and the next word ("data/peek").
  std::map<std::string, std::vector<std::string>> own_options;
  /// Values of options that another part decides, such as model.flavor, by key.
  std::map<std::string, std::vector<std::string>> values;
};

/// A script for `shell`, "bash" or "zsh"; empty for any other.
std::string completion_script(const Schema& schema, std::string_view shell, const CompletionWords& words);

}  // namespace titan
