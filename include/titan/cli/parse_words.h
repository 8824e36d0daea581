// The words after a subcommand, read by CLI11 in the same way for all of them.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace titan {

/// Reads `words` into what `app`, named "titan_train COMMAND", declares. False when they asked for help, which then
/// went to `out`. Throws Error(bad_config) that names the command and its help.
bool parse_words(CLI::App& app, std::span<const std::string> words, std::ostream& out);

/// Whole numbers from `least` on. CLI11's own checks name the largest number there is, digit by digit.
CLI::Validator at_least(int64_t least);

/// What the library says for whoever reads a config, and what to say for it to whoever typed a command.
using Rewording = std::pair<std::string_view, std::string_view>;

/// Calls `act`. In the message of an Error that it throws, the keys of the config that would mend it become the
/// command's own options, by `words`, in their order.
void in_words_of_command(std::span<const Rewording> words, const std::function<void()>& act);

}  // namespace titan
