// What keeps a number of ranks from running a config: known before any of them is started or talks to another.
#pragma once

#include <vector>

#include "titan/config/problem.h"

namespace titan {

/// Degrees that do not multiply to `world`, and a global batch that its data-parallel ranks cannot share; each with the
/// nearest numbers that fit. Empty for a dry run, which has the ranks that it wants.
std::vector<Problem> world_problems(const JobConfig& config, const Origins& origins, int64_t world);

}  // namespace titan
