// titan_train as a function, with every command: called by `main` through libtitan.so, and by tests in place of a
// shell.
#pragma once

#include <string>
#include <vector>

#include "titan/cli/program.h"
#include "titan/config/load.h"

namespace titan {

/// Runs the program with these words, without the program's name, and returns the exit code. Does not throw.
int run_program(const std::vector<std::string>& words);

// Converts exceptions, LibTorch's included, to messages for the user. Used by the program and by a rank that reports
// its failure to the other ranks.

/// Accepts any exception. A lost connection inside a collective counts as a failed peer.
Failure describe_failure(const std::exception_ptr& error);

// Prints the problems of a job before it starts; used by the subcommands that start one.

/// Prints the problems that prevent `loaded` from running: options, missing files. Returns the exit code to end with, 0
/// if there are none. With several ranks, rank 0 prints those of the first rank that has any, and all ranks exit within
/// seconds; a rank that does not reach rank 0 prints its own. `is_rank` false: this process only starts ranks.
int report_job_problems(const LoadedConfig& loaded, bool is_rank = true);

/// Does what report_job_problems does, for the options alone.
int report_config_problems(const LoadedConfig& loaded);

}  // namespace titan
