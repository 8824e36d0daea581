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
    bool takes_config = false;      ///< a config file and options may follow
  };
  std::vector<Subcommand> subcommands;
  /// Values of options that another part decides, such as model.flavor, by key.
  std::map<std::string, std::vector<std::string>> values;
};

/// A script for `shell`, "bash" or "zsh"; empty for any other.
std::string completion_script(const Schema& schema, std::string_view shell, const CompletionWords& words);

}  // namespace titan
