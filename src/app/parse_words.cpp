#include "parse_words.h"

#include <charconv>
#include <vector>

#include "titan/base/error.h"

namespace titan {

bool parse_words(CLI::App& app, std::span<const std::string> words, std::ostream& out) {
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));  // the order CLI11 asks for
  } catch (const CLI::CallForHelp&) {
    out << app.help();  // that of the chosen subcommand, under its whole name
    return false;
  } catch (const CLI::ParseError& problem) {
    const std::string name = app.get_name();
    throw Error(ExitCode::bad_config,
                fmt::format("{}: {} ({} --help)", name.substr(name.rfind(' ') + 1), problem.what(), name));
  }
  return true;
}

CLI::Validator at_least(int64_t least) {
  const auto check = [least](const std::string& word) -> std::string {
    int64_t value = 0;
    const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), value);
    const bool below = problem == std::errc() ? value < least : word.starts_with('-');  // out of range, if a number
    const bool whole = problem != std::errc::invalid_argument && end == word.data() + word.size();
    return whole && below ? fmt::format("{} is less than {}", word, least) : "";
  };
  return {check, fmt::format("from {}", least), "at_least"};
}

void in_words_of_command(std::span<const Rewording> words, const std::function<void()>& act) {
  try {
    act();
  } catch (const InvariantError&) {
    throw;
  } catch (const Error& error) {
    std::string message = error.what();
    for (const auto& [key, option] : words) {
      for (size_t at = 0; (at = message.find(key, at)) != message.npos; at += option.size()) {
        message.replace(at, key.size(), option);
      }
    }
    throw Error(error.code(), message);
  }
}

}  // namespace titan
