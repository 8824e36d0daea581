// What is wrong with a job before it starts, printed; shared by the subcommands that start one.
#pragma once

#include <cstdint>
#include <optional>

#include "titan/config/load.h"
#include "titan/config/schema.h"

namespace titan {

/// Prints what keeps `loaded` from being run: options, parts that are not built, files that are not there, degrees that
/// do not multiply to the number of ranks (`ranks` where this process is to start them, else its launcher's). Returns
/// the exit code to end with, 0 when there is nothing. Among several ranks, rank 0 prints those of the first rank that
/// has any, and all end within seconds; a rank that does not reach rank 0 prints its own.
int report_job_problems(const Schema& schema, const LoadedConfig& loaded, std::optional<int64_t> ranks = {});

/// The first kind alone.
int report_config_problems(const LoadedConfig& loaded);

}  // namespace titan
