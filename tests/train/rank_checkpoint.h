// Checkpoints of the ranks that ranks.h trains, whose models have no config.
#pragma once

#include <filesystem>
#include <vector>

#include "titan/distributed/world.h"
#include "titan/optimize/optimizer.h"
#include "titan/parallel/assembly.h"

namespace titan {

/// What one rank saves: parameters and Adam's moments, where the plan places them.
struct RankState {
  const Assembly& assembly;
  const Optimizer& optimizer;
  const std::vector<ParameterPlace>& places;
  const DeviceMesh& mesh;
  const World& world;
};

/// Saves as step `step` in the folder `root`, together with all other ranks.
void save_rank(const RankState& state, const std::filesystem::path& root, int64_t step);

/// Loads that step, which ranks of any layout have saved.
void load_rank(const RankState& state, const std::filesystem::path& root, int64_t step);

}  // namespace titan
