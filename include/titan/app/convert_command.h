// `titan_train convert DIRECTION …`: reads the command line and the config and hands over to tools/convert.h.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "titan/config/schema.h"

namespace titan {

/// The words that may follow `convert`.
std::vector<std::string> convert_command_words();

/// `arguments`: what follows the word "convert". Returns the exit code; throws what the conversion throws.
int run_convert(const Schema& schema, std::span<const std::string> arguments);

}  // namespace titan
