// What training.gradient_dtype = "bfloat16" does not go with. Such a gradient is rounded once, from a sum in fp32, so
// nothing may add to it.
#include <fmt/format.h>

#include "titan/job/checks.h"
#include "titan/job/job.h"

namespace titan {
namespace {

constexpr const char* kKey = "training.gradient_dtype";

/// "parallelism.data_parallel_shard_degree = -1, which comes to 4".
std::string degree_words(const JobConfig& config, const DegreeOption& option, int64_t ranks) {
  const int64_t given = config.parallelism.*option.degree;
  return fmt::format("{} = {}{}", option.key, given, given == ranks ? "" : fmt::format(", which comes to {}", ranks));
}

}  // namespace

std::vector<Problem> check_gradient_dtype(const JobConfig& config, const Origins& origins, const DeviceMesh& mesh) {
  std::vector<Problem> problems;
  const TrainingSection& training = config.training;
  if (training.gradient_dtype == ElementType::float32) return problems;
  const auto refuse = [&](const std::string& other, const char* why, const std::string& instead) {
    problems.push_back(origins.problem(kKey, fmt::format("{} = \"bfloat16\" does not go with {}: {}", kKey, other, why),
                                       fmt::format("leave it at \"float32\", or {}", instead)));
  };
  for (const MeshAxis axis : kMeshAxes) {
    if (mesh.size(axis) == 1) continue;
    refuse(degree_words(config, degree_option(axis), mesh.size(axis)),
           axis == MeshAxis::pp ? "a stage adds up the gradients of several microbatches, in fp32"
                                : "ranks add up their gradients, in fp32",
           "train with one process");
  }
  const int64_t samples = training.local_batch_size * mesh.data_parallel_degree(), global = training.global_batch_size;
  if (mesh.size(MeshAxis::pp) == 1 && global > samples && global % samples == 0) {
    refuse(fmt::format("training.global_batch_size = {} and training.local_batch_size = {}", global,
                       training.local_batch_size),
           "a step adds up the gradients of several microbatches, in fp32",
           fmt::format("make the step one microbatch (training.global_batch_size = {})", samples));
  }
  if (training.mixed_precision_param == ElementType::float32) {
    refuse("training.mixed_precision_param = \"float32\"", "blocks that compute in fp32 have gradients in fp32",
           "compute in bfloat16");
  }
  if (training.enable_cpu_offload) {
    refuse("training.enable_cpu_offload = true", "gradients are copied to the host in fp32",
           "keep the weights on the device (optimizer.offload = true moves the optimizer's states alone)");
  }
  if (config.debug.groups_of_one) {
    refuse("debug.groups_of_one = true", "communicators of one rank add up gradients as those of several do, in fp32",
           "set that to false");
  }
  return problems;
}

}  // namespace titan
