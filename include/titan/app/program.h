// titan_train as a function, with every command: what libtitan.so is to `main`, and what tests call to see what a shell
// would.
#pragma once

#include <string>
#include <vector>

#include "titan/cli/program.h"
#include "titan/config/load.h"

namespace titan {

/// Runs the program with these words, the program's own name left out, and returns the exit code; nothing is thrown.
int run_program(const std::vector<std::string>& words);

// Converts exceptions, LibTorch's included, to messages for the user. Used by the program and by a rank that reports
// its failure to the other ranks.

/// Total: an exception of any kind becomes a Failure. A lost connection inside a collective is a failed peer.
Failure describe_failure(const std::exception_ptr& error);

// What this program was built from and for: the text of `titan_train --version`.

/// "titan_train 0.1.0", then one line each for commit, LibTorch, CUDA, NCCL and the kernels built.
std::string version_text();

/// "0.1.0 (commit)", for files that record which program wrote them.
std::string short_version();

// What is wrong with a job before it starts, printed; shared by the subcommands that start one.

/// Prints what keeps `loaded` from being run: options, files that are not there. Returns the exit code to end with, 0
/// when there is nothing. Among several ranks, rank 0 prints those of the first rank that has any, and all end within
/// seconds; a rank that does not reach rank 0 prints its own. `is_rank` false: this process only starts ranks.
int report_job_problems(const LoadedConfig& loaded, bool is_rank = true);

/// As report_job_problems, for options only.
int report_config_problems(const LoadedConfig& loaded);

}  // namespace titan
