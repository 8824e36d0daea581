// The functions of `job` depend on their arguments alone: they read no file, no environment, no clock and no random
// device. Facts of a machine are gathered above (titan/cli/facts.h) and passed to them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "sources.h"
#include "titan/base/text.h"

namespace titan {
namespace {

/// Headers of the system that `job` may include: none of them can ask the machine for anything. A list of the others
/// would have gaps.
const std::set<std::string> kPureHeaders{
    "algorithm",    "array",        "cctype",     "charconv",         "cmath",      "cstddef", "cstdint",
    "fmt/format.h", "fmt/ranges.h", "functional", "initializer_list", "limits",     "map",     "memory",
    "numbers",      "regex",        "numeric",    "optional",         "set",        "span",    "string",
    "tuple",        "utility",      "variant",    "vector",           "string_view"};

/// Headers of `base` that are about this process and its files.
const std::regex kImpureOwnHeader(
    R"(titan/(cli/.*|base/(command_queue|console_writer|control_group|file_kind|filesystem|final_message|log|process|stop_signals)\.h))");

/// Calls that are reachable through other headers: descriptions of corpora and templates hold paths, for example.
const std::regex kImpureCall(
    R"(\b(secure_)?getenv\b|\benviron\b|\bfilesystem\s*::|\b[io]?fstream\b|\bf?open\w*\s*\(|\bread_\w*file\w*\s*\(|)"
    R"(\b(steady|system|high_resolution)_clock\b|\btime\s*\(|\brandom_device\b|\bgetp?pid\s*\(|::\s*(stat|glob|access)\s*\()");

/// What `file` reads besides its arguments, with place: "src/job/x.cpp:3: #include <fstream>".
std::vector<std::string> impure_lines(const SourceFile& file) {
  static const std::regex include(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
  std::vector<std::string> places;
  int number = 0;
  for (const std::string& line : split(file.text, '\n')) {
    ++number;
    const std::string code = line.substr(0, line.find("//"));
    std::smatch found;
    const bool is_include = std::regex_search(code, found, include);
    const bool is_allowed = !is_include             ? !std::regex_search(code, kImpureCall)
                            : found[1].str() == "<" ? kPureHeaders.contains(found[2])
                                                    : !std::regex_match(found[2].str(), kImpureOwnHeader);
    if (!is_allowed) places.push_back(fmt::format("{}:{}: {}", file.shown, number, trim(line)));
  }
  return places;
}

TEST(PureChecks, AJobIsCheckedByItsArgumentsAlone) {
  std::vector<std::string> places;
  size_t files = 0;
  for (const SourceFile& file : all_sources()) {
    if (file.part != "job") continue;
    ++files;
    for (std::string& place : impure_lines(file)) places.push_back(std::move(place));
  }
  EXPECT_GT(files, 10u);
  EXPECT_TRUE(places.empty()) << "gather the fact in titan/cli/facts.h, and pass it:\n" << join(places, "\n");
}

TEST(PureChecks, WhatReadsTheMachineIsFoundWithItsPlace) {
  for (const char* line : {"#include <fstream>",
                           "#include <filesystem>",
                           "# include <cstdlib>",
                           "#include <unistd.h>",
                           "#include <glob.h>",
                           "#include <random>",
                           "#include <chrono>",
                           "#include \"titan/base/filesystem.h\"",
                           "#include \"titan/base/process.h\"",
                           "#include \"titan/cli/facts.h\"",
                           "const char* home = std::getenv(\"HOME\");",
                           "if (std::filesystem::exists(path)) return;",
                           "fs::path x = filesystem ::current_path();",
                           "std::ifstream file(path);",
                           "std::string text = read_text_file(path, code);",
                           "auto x = open_dataset(options);",
                           "const auto now = std::chrono::steady_clock::now();",
                           "std::random_device source;",
                           "::stat(path, &status);",
                           "int id = ::getppid();"}) {
    EXPECT_EQ(impure_lines({"job", "src/job/x.cpp", fmt::format("int x;\n{}\n", line)}),
              std::vector<std::string>{fmt::format("src/job/x.cpp:2: {}", line)});
  }
}

TEST(PureChecks, WordsAboutFilesAreNoReading) {
  for (const char* line : {"#include <algorithm>", "#include \"titan/base/text.h\"", "#include \"titan/config/load.h\"",
                           "// std::filesystem::exists(path) is asked above", "name_a_file(key);",
                           "options.timeout = std::chrono::seconds(config.data.timeout);", "const int opened = 3;"}) {
    EXPECT_EQ(impure_lines({"job", "src/job/x.cpp", line}), std::vector<std::string>()) << line;
  }
}

}  // namespace
}  // namespace titan
