// Runs any command as a process: makes output safe for a terminal, and is the only place that turns an error into text
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

/// An exception as shown to the user: an exit code and one sentence.
struct Failure {
  ExitCode code;
  std::string text;
};

/// Turns an exception of any kind into a Failure; throws nothing.
using DescribeFailure = Failure (*)(const std::exception_ptr& error);

/// Describes all failures except LibTorch's (titan/app/program.h): an Error has its own code, out of memory 71, a file
/// system error 73, anything else 70.
Failure describe_failure_without_tensors(const std::exception_ptr& error);
/// `words`: the allocator's message, which states the size; may be empty.
Failure out_of_memory_failure(const std::string& words);

/// Returns the result of `act`. An exception becomes one line on standard error and the exit code given by `describe`.
int exit_code_of(const std::function<int()>& act, DescribeFailure describe);

/// Runs `act` as the main function of the process and returns its exit code; throws nothing. `words`: the program's
/// arguments. An exception that escapes a thread ends the process with the same message.
int run_as_program(std::span<const std::string> words, const std::function<int(const Schema& schema)>& act,
                   DescribeFailure describe);

/// Returns `code` for main after success. After a failure, or if a thread was left behind (base/process.h), it ends the
/// process without destroying static objects, because threads (e.g. NCCL's) still use them; NCCL communicators are then
/// not shut down.
int end_process(int code);

// Parsing of a subcommand's arguments with CLI11.

/// Parses `words` into the variables declared in `app`, which is named "titan_train COMMAND". Returns false after
/// printing help to `out` if `words` ask for it. Throws Error(bad_config) that names the command and its help.
bool parse_words(CLI::App& app, std::span<const std::string> words, std::ostream& out);

/// Accepts integers >= `least`. CLI11's own checks print the largest int64 in full.
CLI::Validator at_least(int64_t least);

/// A phrase about config keys in the library's messages, and its replacement for users of a command.
using Rewording = std::pair<std::string_view, std::string_view>;

/// Calls `act`. In the message of an Error it throws, replaces config keys by the command's options, with `words`
/// applied in order.
void in_words_of_command(std::span<const Rewording> words, const std::function<void()>& act);

}  // namespace titan
