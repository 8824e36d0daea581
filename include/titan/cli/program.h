// The program around any command: output that is safe on a terminal, and the only place that turns an error into text
// and an exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <exception>
#include <functional>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "titan/base/error.h"
#include "titan/config/schema.h"

namespace titan {

/// An exception as the user sees it: an exit code and one sentence.
struct Failure {
  ExitCode code;
  std::string text;
};

/// Turns an exception of any kind into a Failure; throws nothing.
using DescribeFailure = Failure (*)(const std::exception_ptr& error);

/// All failures but those of LibTorch (titan/app/program.h): an Error has its own code, out of memory 71, a file
/// system error 73, anything else 70.
Failure describe_failure_without_tensors(const std::exception_ptr& error);
/// `words`: the allocator's message with the size; may be empty.
Failure out_of_memory_failure(const std::string& words);

/// What `act` returns. What it throws becomes one line on standard error and the exit code that `describe` gives it.
int exit_code_of(const std::function<int()>& act, DescribeFailure describe);

/// Runs `act` as the process's work on `words`, the program's arguments, and returns the exit code; nothing is thrown.
/// An exception that leaves a thread ends the process in the same words.
int run_as_program(std::span<const std::string> words, const std::function<int(const Schema& schema)>& act,
                   DescribeFailure describe);

/// For main to return. After a failure the process ends here, static objects as they are: threads of libraries still
/// use them, NCCL's among others, whose groups are not shut down then.
int end_process(int code);

// Parsing of a subcommand's arguments with CLI11, the same for all subcommands.

/// Reads `words` into what `app`, named "titan_train COMMAND", declares. False when they asked for help, which then
/// went to `out`. Throws Error(bad_config) that names the command and its help.
bool parse_words(CLI::App& app, std::span<const std::string> words, std::ostream& out);

/// Whole numbers from `least` on. CLI11's own checks print the largest int64 in full.
CLI::Validator at_least(int64_t least);

/// A phrase of the library's messages about config keys, and its replacement for a command's user.
using Rewording = std::pair<std::string_view, std::string_view>;

/// Calls `act`. In the message of an Error that it throws, replaces config keys by the command's options, applying
/// `words` in order.
void in_words_of_command(std::span<const Rewording> words, const std::function<void()>& act);

}  // namespace titan
