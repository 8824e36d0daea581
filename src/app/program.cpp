#include "titan/app/program.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>
#include <optional>
#include <span>
#include <string_view>

#include "titan/app/commands.h"
#include "titan/app/failure.h"
#include "titan/app/version.h"
#include "titan/base/printable.h"

namespace titan {
namespace {

int fail(const Failure& failure) {
  std::cout.flush();
  std::cerr << "titan_train: " << printable_lines(failure.text) << std::endl;
  return static_cast<int>(failure.code);
}

/// For an exception that leaves a thread, for want of memory mostly: ends as one of the main thread does, without a
/// tear-down, and with a core for whom looks for a bug.
[[noreturn]] void end_uncaught() {
  const std::exception_ptr error = std::current_exception();
  auto code = static_cast<int>(ExitCode::bug);
  try {
    if (error) code = fail(describe_failure(error));
  } catch (const std::bad_alloc&) {  // not even memory for the words
    constexpr std::string_view kWords = "titan_train: out of memory\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kWords.data(), kWords.size());
    code = static_cast<int>(ExitCode::out_of_memory);
  }
  if (code == static_cast<int>(ExitCode::bug)) std::abort();
  std::_Exit(code);
}

int dispatch(const std::vector<std::string>& words) {
  const PrintableStream errors(std::cerr);
  // A file or a pipe gets what a command writes as it is. What schedule and launch put on a terminal has colours.
  const bool paints = !words.empty() && (words[0] == "schedule" || words[0] == "launch");
  std::optional<PrintableStream> output;
  if (!paints && ::isatty(STDOUT_FILENO) != 0) output.emplace(std::cout);
  const Schema schema;
  const std::span<const std::string> arguments(words);
  auto asks_for_help = [](const std::string& word) { return word == "--help" || word == "-h"; };
  const bool asks = std::any_of(words.begin(), words.end(), asks_for_help);
  if (!words.empty()) {
    if (words[0] == "--version") {
      std::cout << version_text();
      return 0;
    }
    if (asks && (words[0] == "train" || words[0] == "lr-table")) return run_help(schema, {});
    for (const Command& command : commands()) {
      if (words[0] == command.name) return command.run(schema, arguments.subspan(1));
    }
    if (asks_for_help(words[0])) return run_help(schema, arguments.subspan(1));
  }
  if (asks) return run_help(schema, {});
  return run_train(schema, arguments);
}

}  // namespace

int exit_code_of(const std::function<int()>& act) {
  try {
    return act();
  } catch (...) {
    return fail(describe_failure(std::current_exception()));
  }
}

int run_program(const std::vector<std::string>& words) {
  // A file that reaches its size limit is a failed write like that of a full disk, not a reason to die.
  ::signal(SIGXFSZ, SIG_IGN);
  std::set_terminate(end_uncaught);
  return exit_code_of([&words] { return dispatch(words); });
}

int end_process(int code) {
  if (code == 0) return code;
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace titan
