// Every message that a quick command line can provoke: tests/golden/COMMAND.txt is a session with the command, and this
// runs it. TITAN_GOLDEN=write puts what was printed in the place of what the files expect.
//
// A session is text with indented lines in it: `  $ command`, more lines of it (`  > …`), what it printed, standard
// error marked with `! `, and the exit code in brackets unless it is 0. titan_train, with variables before it and < or
// > and a file behind it, runs in this process, anything else in a shell, all of it in one folder with the checkout's
// configs and a copy of tests/golden/files.
#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <regex>
#include <utility>

#include "run.h"
#include "support/checkout.h"
#include "support/job.h"
#include "titan/app/commands.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"

namespace titan {
namespace {

namespace fs = std::filesystem;

/// A command and what it printed; or text between two, with an empty command.
struct Exchange {
  int line = 0;  // of the file, from 1
  std::vector<std::string> command, printed;
  size_t blank_lines = 0;  // after it
};

std::vector<Exchange> parse_session(const std::string& text) {
  std::vector<Exchange> session;
  int number = 0;
  for (const std::string& line : split(text.substr(0, text.rfind('\n')), '\n')) {
    ++number;
    const bool begins = line.starts_with("  $ "), indented = line.empty() || line.starts_with("  ");
    if (session.empty() || begins || (!indented && !session.back().command.empty()))
      session.push_back({number, {}, {}});
    Exchange& last = session.back();
    const bool continues = line.starts_with("  > ") && last.printed.empty();
    (begins || continues ? last.command : last.printed).push_back(line.starts_with("  ") ? line.substr(2) : line);
  }
  for (Exchange& exchange : session) {
    for (; !exchange.printed.empty() && exchange.printed.back().empty(); ++exchange.blank_lines) {
      exchange.printed.pop_back();
    }
  }
  return session;
}

std::string session_text(const std::vector<Exchange>& session) {
  std::string text;
  for (const Exchange& exchange : session) {
    const std::string margin = exchange.command.empty() ? "" : "  ";
    for (const auto* lines : {&exchange.command, &exchange.printed}) {
      for (const std::string& line : *lines) text += (line.empty() ? "" : margin + line) + "\n";
    }
    text += std::string(exchange.blank_lines, '\n');
  }
  return text;
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  for (size_t at = 0; (at = text.find(what, at)) != text.npos; at += by.size()) text.replace(at, what.size(), by);
  return text;
}

/// Words as a shell would take them, of a line with quotes and no more.
std::vector<std::string> shell_words(const std::string& line) {
  std::vector<std::string> words;
  char quote = 0;
  bool inside = false;
  for (const char c : line) {
    const bool is_space = quote == 0 && c == ' ', opens = quote == 0 && (c == '\'' || c == '"');
    if (!is_space && !inside) words.emplace_back();
    inside = !is_space;
    if (!is_space && !opens && c != quote) words.back() += c;
    if (opens || c == quote) quote = opens ? c : 0;
  }
  return words;
}

bool is_assignment(const std::string& word) { return word.find('=') != word.npos; }

Outcome run_in_shell(const std::string& command) {
  Outcome outcome;
  FILE* const pipe = ::popen(("export LC_ALL=C; exec 2>&1; " + command).c_str(), "r");
  std::array<char, 4096> buffer{};
  while (const size_t count = ::fread(buffer.data(), 1, buffer.size(), pipe))
    outcome.output.append(buffer.data(), count);
  outcome.code = WEXITSTATUS(::pclose(pipe));
  return outcome;
}

class Golden : public ::testing::TestWithParam<std::string> {
 protected:
  Golden() {
    fs::copy(checkout() / "tests/golden/files", folder_.path(), fs::copy_options::recursive);
    fs::create_directory_symlink(checkout() / "configs", folder_.path() / "configs");
    fs::current_path(folder_.path());
    here_ = fs::current_path();
  }
  ~Golden() override { fs::current_path(before_); }

  /// What depends on the machine or the moment has fixed words.
  std::string steady(std::string text) const {
    text = replaced(std::move(text), here_, "$PWD");
    static const std::vector<std::pair<std::regex, std::string>> kUnsteady{
        {std::regex(R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})"), "DATE TIME"},
        {std::regex(R"(on \d+ processors: so many)"), "on N processors: so many"},
        {std::regex(R"(use at most \d+, or 0)"), "use at most N, or 0"},
        {std::regex(R"(the first loss is [\d.]+)"), "the first loss is N"},
        {std::regex(R"(has \d+ bytes instead of \d+)"), "has N bytes instead of M"}};
    for (const auto& [pattern, by] : kUnsteady) text = std::regex_replace(text, pattern, by);
    return text;
  }

  /// `words`: of titan_train.
  Outcome run_words(std::vector<std::string> words) const {
    for (std::string& word : words) word = replaced(word, "$PWD", here_);
    std::string from = "/dev/null", to;
    if (words.size() > 2 && (words[words.size() - 2] == "<" || words[words.size() - 2] == ">")) {
      (words[words.size() - 2] == "<" ? from : to) = words.back();
      words.resize(words.size() - 2);
    }
    std::ifstream input(from);
    std::streambuf* const usual = std::cin.rdbuf(input.rdbuf());
    Outcome outcome = run({words.begin() + 1, words.end()});
    std::cin.rdbuf(usual);
    std::cin.clear();
    if (!to.empty()) std::ofstream(to) << std::exchange(outcome.output, "");
    return outcome;
  }

  std::vector<std::string> act(const std::vector<std::string>& lines) const {
    std::string command;
    for (const std::string& line : lines) command += line.substr(2) + "\n";
    const std::vector<std::string> words = shell_words(trim(command));
    const auto program = std::find(words.begin(), words.end(), "titan_train");
    const bool own = program != words.end() && std::all_of(words.begin(), program, is_assignment);
    for (auto word = words.begin(); own && word != program; ++word) {
      ::setenv(word->substr(0, word->find('=')).c_str(), word->substr(word->find('=') + 1).c_str(), 1);
    }
    const Outcome outcome = own ? run_words({program, words.end()}) : run_in_shell(command);
    for (auto word = words.begin(); own && word != program; ++word)
      ::unsetenv(word->substr(0, word->find('=')).c_str());
    std::vector<std::string> printed;
    for (const auto& [stream, mark] : {std::pair(outcome.output, ""), {outcome.errors, "! "}}) {
      if (stream.empty()) continue;
      std::vector<std::string> shown = split(steady(stream), '\n');
      if (shown.back().empty()) {
        shown.pop_back();
      } else {
        shown.back() += " (no newline)";
      }
      for (const std::string& line : shown) printed.push_back(line.empty() ? "" : mark + line);
    }
    while (!printed.empty() && printed.back().empty()) printed.pop_back();
    if (outcome.code != 0) printed.push_back("[" + std::to_string(outcome.code) + "]");
    return printed;
  }

  const fs::path before_ = fs::current_path();
  const TestFolder folder_;
  std::string here_;
};

TEST_P(Golden, TheCommandPrintsWhatItsSessionShows) {
  using ::testing::internal::edit_distance::CreateUnifiedDiff;
  const fs::path file = checkout() / "tests/golden" / (GetParam() + ".txt");
  std::vector<Exchange> session = parse_session(read_file(file));
  const char* const mode = std::getenv("TITAN_GOLDEN");
  const bool writes = mode && std::string(mode) == "write";
  for (Exchange& exchange : session) {
    if (exchange.command.empty()) continue;
    std::vector<std::string> printed = act(exchange.command);
    if (writes) {
      exchange.printed = std::move(printed);
    } else if (printed != exchange.printed) {
      ADD_FAILURE_AT(file.c_str(), exchange.line) << join(exchange.command, "\n") << "\n"
                                                  << CreateUnifiedDiff(exchange.printed, printed);
    }
  }
  if (writes) write_file_atomically(file, session_text(session));
}

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const Command& command : commands()) names.emplace_back(command.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Commands, Golden, ::testing::ValuesIn(command_names()),
                         [](const auto& info) { return replaced(info.param, "-", "_"); });

}  // namespace
}  // namespace titan
