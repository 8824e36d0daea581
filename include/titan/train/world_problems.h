// Problems of running a config on a given number of ranks, found before any rank is started.
#pragma once

#include <vector>

#include "titan/config/problem.h"
#include "titan/model/description.h"

namespace titan {

/// Degrees that do not multiply to `world`, and a global batch that its data-parallel ranks cannot split; each with the
/// nearest numbers that fit. Notes on options without effect on that many ranks. A dry run uses its own number of
/// ranks.
std::vector<Problem> world_problems(const JobConfig& config, const Origins& origins, int64_t world);

/// The smallest number of ranks for the config's degrees, or comm.world_size if set.
int64_t fewest_ranks(const JobConfig& config);

// Degrees that the model and the sequence lengths allow, checked before any rank is started.

/// Tensor-parallel ranks must split every head, row and column of a block evenly; with context-parallel ranks, every
/// sequence. `model` null: its sizes contradict each other, and only sequences are checked.
std::vector<Problem> check_degrees(const ModelDescription* model, const JobConfig& config, const Origins& origins);

}  // namespace titan
