// What keeps a number of ranks from running a config: known before any of them is started or talks to another.
#pragma once

#include <vector>

#include "titan/config/problem.h"
#include "titan/model/description.h"

namespace titan {

/// Degrees that do not multiply to `world`, and a global batch that its data-parallel ranks cannot share; each with the
/// nearest numbers that fit. Notes on options that do nothing on so many ranks. A dry run has the ranks that it wants.
std::vector<Problem> world_problems(const JobConfig& config, const Origins& origins, int64_t world);

/// The fewest ranks that the config's degrees can have, or those that comm.world_size names.
int64_t fewest_ranks(const JobConfig& config);

// Degrees that the model and the lengths of its sequences allow, before anything is started.

/// Tensor-parallel ranks share every head, row and column of a block, and with context-parallel ones every sequence.
/// `model` null: its sizes contradict each other, and only sequences are looked at.
std::vector<Problem> check_degrees(const ModelDescription* model, const JobConfig& config, const Origins& origins);

}  // namespace titan
