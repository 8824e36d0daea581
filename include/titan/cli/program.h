// The program around any command: output that is safe on a terminal, and the only place that turns an error into text
// and an exit code.
#pragma once

#include <exception>
#include <functional>
#include <span>
#include <string>
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

/// All failures but those of LibTorch (titan/app/failure.h): an Error has its own code, memory that ran out 71, a file
/// system's refusal 73, anything else 70.
Failure describe_failure_without_tensors(const std::exception_ptr& error);
/// `words`: the allocator's own on the size; may be empty.
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

}  // namespace titan
