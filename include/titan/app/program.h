// titan_train as a function: finds the subcommand, runs it, and is the only place that turns an error into text and an
// exit code. `main` hands over the words and returns what comes back, so that tests see what a shell would.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace titan {

/// Runs the program with these words, the program's own name left out; nothing is thrown.
int run_program(const std::vector<std::string>& words);

/// For main to return. After a failure the process ends here, static objects as they are: threads of libraries still
/// use them, NCCL's among others, whose groups are not shut down then.
int end_process(int code);

/// What `act` returns. What it throws becomes one line on standard error and the exit code of its kind: an Error its
/// own, memory that ran out 71, a file system's refusal 73, anything else 70.
int exit_code_of(const std::function<int()>& act);

}  // namespace titan
