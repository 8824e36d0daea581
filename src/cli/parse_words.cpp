#include "titan/cli/parse_words.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {
namespace {

/// CLI11 calls a word that names no subcommand an unexpected argument.
void refuse_mistyped_subcommand(const CLI::App& app, std::span<const std::string> words) {
  std::vector<std::string> known;
  for (const CLI::App* subcommand : app.get_subcommands([](const CLI::App*) { return true; })) {
    known.push_back(subcommand->get_name());
  }
  if (known.empty() || words.empty() || words[0].starts_with("-")) return;
  if (std::find(known.begin(), known.end(), words[0]) != known.end()) return;
  const std::vector<std::string> close = nearest(words[0], known, 1);
  const std::string hint = close.empty() ? "" : fmt::format("; did you mean {}?", close.front());
  const std::string name = app.get_name();
  throw Error(ExitCode::bad_config, fmt::format("{} has no command {}{} ({} --help)", name.substr(name.rfind(' ') + 1),
                                                words[0], hint, name));
}

}  // namespace

bool parse_words(CLI::App& app, std::span<const std::string> words, std::ostream& out) {
  refuse_mistyped_subcommand(app, words);
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
