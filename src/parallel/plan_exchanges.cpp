#include "titan/parallel/plan_exchanges.h"

#include <fmt/format.h>

#include <set>

#include "plan_parts.h"
#include "titan/base/text.h"

namespace titan {
namespace {

constexpr int64_t kFloat32 = 4;

/// Elements of all ranks' chunks of a group, padding included.
int64_t collective_numel(const WeightGroupPlan& group, int64_t shards) {
  int64_t total = 0;
  for (const ParameterPlan& parameter : group.parameters) total += shards * parameter.chunk_numel();
  return total;
}

/// Bytes of all ranks' chunks of a group as its weights are gathered.
int64_t gathered_bytes(const WeightGroupPlan& group, int64_t shards) {
  int64_t total = 0;
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    total += shards * group.parameters[i].chunk_numel() * group.gathered_size(i);
  }
  return total;
}

/// Elements whose gradients are partial sums on every tensor-parallel rank.
int64_t copied_numel(const WeightGroupPlan& group) {
  int64_t copied = 0;
  for (const ParameterPlan& parameter : group.parameters) {
    if (parameter.copied_over_tensor) copied += parameter.shard.numel();
  }
  return copied;
}

}  // namespace

std::vector<std::vector<WeightExchange>> weight_exchanges(const Plan& plan) {
  using enum Collective;
  const int64_t shards = plan.request.shards();
  const std::vector<int64_t> gathers = shards > 1 ? gathers_per_step(plan) : std::vector<int64_t>();
  std::vector<std::vector<WeightExchange>> all(plan.groups.size());
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const WeightGroupPlan& group = plan.groups[g];
    std::vector<WeightExchange>& own = all[g];
    if (shards > 1) {
      const int64_t numel = collective_numel(group, shards);
      own.push_back({group_names::kGather, all_gather, {gathers[g], gathers[g] * gathered_bytes(group, shards)}});
      own.push_back({group_names::kScatter, reduce_scatter, {1, numel * size_of(group.reduce)}});
    }
    if (plan.request.place.mesh.size(MeshAxis::dp_replicate) > 1) {
      own.push_back({group_names::kReplicate, all_reduce, {1, group.shard_numel * size_of(group.reduce)}});
    }
    if (const int64_t copied = copied_numel(group); copied > 0) {
      own.push_back({group_names::kTensor, all_reduce, {1, copied * kFloat32}});
    }
    if (const int64_t scales = group.scaled_weights(); scales > 0 && !plan.precomputes_scales()) {
      if (group.gathers_float8 && shards > 1) own.push_back({group_names::kGather, all_reduce, {1, scales * kFloat32}});
      if (plan.request.place.mesh.size(MeshAxis::tp) > 1) {
        own.push_back({group_names::kTensor, all_reduce, {1, scales * kFloat32}});
      }
    }
    if (group.has_twin) own.push_back({group_names::kTwins, all_reduce, {1, group.shard_numel * kFloat32}});
  }
  return all;
}

std::string layout_words(const TensorLayout& layout) {
  std::vector<std::string> words;
  std::set<int64_t> cut;
  for (const Split& split : layout.splits()) {
    if (split.parts == 1) continue;
    if (!split.dimension) {
      words.push_back(split.axis + " Replicate");
      continue;
    }
    const bool strided = !cut.insert(*split.dimension).second;
    words.push_back(fmt::format("{} {}Shard({})", split.axis, strided ? "Strided" : "", *split.dimension));
  }
  return words.empty() ? "whole" : join(words, ", ");
}

}  // namespace titan
