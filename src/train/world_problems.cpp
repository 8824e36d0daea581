#include "titan/train/world_problems.h"

#include <algorithm>
#include <initializer_list>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/config/limits.h"
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

/// More than a world can have. Degrees may multiply to more than a number holds: their products end here.
constexpr int64_t kTooManyRanks = kMostRanks + 1;

int64_t ranks_of(std::initializer_list<int64_t> degrees) {
  int64_t product = 1;
  for (const int64_t degree : degrees) product = std::min(product * std::min(degree, kTooManyRanks), kTooManyRanks);
  return product;
}

/// Ranks for one shard of the weights each.
int64_t unsharded_ranks(const ParallelismSection& degrees) {
  return ranks_of({degrees.pipeline_parallel_degree, degrees.data_parallel_replicate_degree,
                   degrees.context_parallel_degree, degrees.tensor_parallel_degree});
}

std::string fitting_worlds(const ParallelismSection& degrees, int64_t world) {
  const int64_t others = unsharded_ranks(degrees);
  const int64_t shards = degrees.data_parallel_shard_degree;
  if (ranks_of({others, std::max<int64_t>(1, shards)}) == kTooManyRanks) {
    return fmt::format("the degrees need more than the {} ranks that a run can have", kMostRanks);
  }
  if (shards == -1) return fmt::format("the degrees need {} ranks", nearest_multiples(world, others));
  const std::string all = fmt::format("the degrees need {} ranks", others * shards);
  if (world % others != 0) return all;
  return all + fmt::format("; or set parallelism.data_parallel_shard_degree to {}, or to -1", world / others);
}

std::vector<Problem> batch_problems(const JobConfig& config, const Origins& origins, const DeviceMesh& mesh) {
  const int64_t local = config.training.local_batch_size, global = config.training.global_batch_size;
  const int64_t ranks = mesh.data_parallel_degree();
  if (global <= 0 || global % (local * ranks) == 0) return {};
  return {origins.problem(
      "training.global_batch_size",
      fmt::format("training.global_batch_size = {} is no multiple of training.local_batch_size = {}{}", global, local,
                  ranks > 1 ? fmt::format(" on {} data-parallel ranks", ranks) : ""),
      fmt::format("use {} (a multiple of {}), or -1", nearest_multiples(global, local * ranks), local * ranks))};
}

/// Options that say something and do nothing on this mesh, although the degrees that were given left that open.
std::vector<Problem> notes_for_mesh(const JobConfig& config, const Origins& origins, const DeviceMesh& mesh) {
  const std::string key = "parallelism.fsdp_reshard_after_forward";
  const bool is_open = config.parallelism.data_parallel_shard_degree == -1;
  const bool gathers =
      mesh.size(MeshAxis::dp_shard) * mesh.size(MeshAxis::cp) > 1 || config.training.enable_cpu_offload;
  if (!is_open || gathers || !origins.is_set(key) || config.parallelism.fsdp_reshard_after_forward == "default")
    return {};
  const std::string why = mesh.world() == 1 ? "one process holds every parameter whole"
                                            : fmt::format(
                                                  "no rank of {} shards its weights "
                                                  "(parallelism.data_parallel_shard_degree comes to 1)",
                                                  mesh.world());
  return {origins.note(
      key, fmt::format("{} = \"{}\" has no effect here: {}", key, config.parallelism.fsdp_reshard_after_forward, why))};
}

}  // namespace

int64_t fewest_ranks(const JobConfig& config) {
  const int64_t shards = std::max<int64_t>(1, config.parallelism.data_parallel_shard_degree);
  const int64_t asked = ranks_of({unsharded_ranks(config.parallelism), shards});
  return config.comm.world_size.value_or(std::min(asked, kMostRanks));
}

std::vector<Problem> world_problems(const JobConfig& config, const Origins& origins, int64_t world) {
  // A dry run stands for as many ranks as it says, whoever starts it.
  if (config.comm.mode == "fake_backend") world = config.comm.world_size.value_or(world);
  try {
    const DeviceMesh mesh = make_mesh(config, world);
    std::vector<Problem> problems = batch_problems(config, origins, mesh);
    for (Problem& note : notes_for_mesh(config, origins, mesh)) problems.push_back(std::move(note));
    return problems;
  } catch (const Error& error) {
    return {origins.problem(given_degree(origins), error.what(), fitting_worlds(config.parallelism, world))};
  }
}

}  // namespace titan
