// What is wrong with a job before it starts, printed; shared by the subcommands that start one.
#pragma once

#include "titan/config/load.h"

namespace titan {

/// Prints what keeps `loaded` from being run: options, files that are not there. Returns the exit code to end with, 0
/// when there is nothing. Among several ranks, rank 0 prints those of the first rank that has any, and all end within
/// seconds; a rank that does not reach rank 0 prints its own. `is_rank` false: this process only starts ranks.
int report_job_problems(const LoadedConfig& loaded, bool is_rank = true);

/// The first kind alone.
int report_config_problems(const LoadedConfig& loaded);

}  // namespace titan
