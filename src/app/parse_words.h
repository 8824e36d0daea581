// The words after a subcommand, read by CLI11 in the same way for all of them.
#pragma once

#include <CLI/CLI.hpp>

#include <ostream>
#include <span>
#include <string>

namespace titan {

/// Reads `words` into what `app`, named "titan_train COMMAND", declares. False when they asked for help, which then
/// went to `out`. Throws Error(bad_config) that names the command and its help.
bool parse_words(CLI::App& app, std::span<const std::string> words, std::ostream& out);

}  // namespace titan
