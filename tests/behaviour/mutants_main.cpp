// config_mutants FILE FIRST COUNT FOLDER: writes mutants FIRST … FIRST + COUNT − 1 of a config to FOLDER/K.toml and
// prints, one line each, K, a tab and the edit. For the test that runs the trainer on damaged configs that pass the
// check.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <exception>

#include "config/mutants.h"
#include "titan/base/error.h"
#include "titan/base/filesystem.h"

namespace titan {
namespace {

uint64_t number(std::string_view word) {
  uint64_t value = 0;
  const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (problem != std::errc() || end != word.data() + word.size()) {
    throw Error(ExitCode::bad_config,
                fmt::format("\"{}\" is not a whole number; write FIRST and COUNT in digits", word));
  }
  return value;
}

void write_mutants(const std::filesystem::path& file, uint64_t first, uint64_t count, const std::filesystem::path& to) {
  const std::string original = read_file(file, ExitCode::bad_config);
  make_folders(to);
  for (uint64_t k = first; k < first + count; ++k) {
    const Mutant mutated = mutant(original, k);
    write_file_atomically(to / fmt::format("{}.toml", k), mutated.text);
    std::string edit = mutated.edit;
    std::replace(edit.begin(), edit.end(), '\n', ' ');
    fmt::print("{}\t{}\n", k, edit);
  }
}

}  // namespace
}  // namespace titan

int main(int argc, char** argv) {
  if (argc != 5) {
    fmt::print(stderr, "usage: config_mutants FILE FIRST COUNT FOLDER\n");
    return static_cast<int>(titan::ExitCode::bad_config);
  }
  try {
    titan::write_mutants(argv[1], titan::number(argv[2]), titan::number(argv[3]), argv[4]);
  } catch (const titan::Error& error) {
    fmt::print(stderr, "config_mutants: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "config_mutants: {}\n", error.what());
    return static_cast<int>(titan::ExitCode::bug);
  }
  return 0;
}
