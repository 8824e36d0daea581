#include "parse_words.h"

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

}  // namespace titan
