// Shell completion for titan_train: subcommands, options of the schema, and the values of options that have a fixed
// set.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "titan/config/schema.h"

namespace titan {

/// A script for `shell`, "bash" or "zsh"; empty for any other.
std::string completion_script(const Schema& schema, std::string_view shell, std::span<const std::string> subcommands);

}  // namespace titan
