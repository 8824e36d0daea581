#include "titan/train/world_problems.h"

#include <algorithm>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/train/job.h"

namespace titan {
namespace {

/// The first degree that the user gave: the place to look at.
std::string given_degree(const Origins& origins) {
  for (const char* name : {"pipeline_parallel_degree", "data_parallel_replicate_degree", "data_parallel_shard_degree",
                           "context_parallel_degree", "tensor_parallel_degree"}) {
    if (std::string key = std::string("parallelism.") + name; origins.is_set(key)) return key;
  }
  return "parallelism.data_parallel_shard_degree";
}

/// The multiples of `step` next to `number`, from `step` on.
std::string nearest_multiples(int64_t number, int64_t step) {
  const int64_t below = number / step * step;
  return below > 0 ? fmt::format("{} or {}", below, below + step) : std::to_string(step);
}

std::string fitting_worlds(const ParallelismSection& degrees, int64_t world) {
  const int64_t others = degrees.pipeline_parallel_degree * degrees.data_parallel_replicate_degree *
                         degrees.context_parallel_degree * degrees.tensor_parallel_degree;
  const int64_t shards = degrees.data_parallel_shard_degree;
  if (shards == -1) return fmt::format("the degrees need {} ranks", nearest_multiples(world, others));
  const std::string all = fmt::format("the degrees need {} ranks", others * shards);
  if (world % others != 0) return all;
  return all + fmt::format("; or set parallelism.data_parallel_shard_degree to {}, or to -1", world / others);
}

}  // namespace

std::vector<Problem> world_problems(const JobConfig& config, const Origins& origins, int64_t world) {
  // A dry run stands for as many ranks as it says, whoever starts it.
  if (config.comm.mode == "fake_backend") world = config.comm.world_size.value_or(world);
  try {
    const MeshPlace place{make_mesh(config, world), 0};
    const int64_t at_once = config.training.local_batch_size * place.mesh.data_parallel_degree();
    const int64_t global = config.training.global_batch_size;
    if (global <= 0 || global % at_once == 0) return {};
    return {origins.problem(
        "training.global_batch_size",
        fmt::format("training.global_batch_size = {} is no multiple of training.local_batch_size = {} on {} "
                    "data-parallel ranks",
                    global, config.training.local_batch_size, place.mesh.data_parallel_degree()),
        fmt::format("use a multiple of {}, such as {}, or -1", at_once, nearest_multiples(global, at_once)))};
  } catch (const Error& error) {
    return {origins.problem(given_degree(origins), error.what(), fitting_worlds(config.parallelism, world))};
  }
}

}  // namespace titan
