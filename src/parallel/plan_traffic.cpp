// What one training step sends, by communicator. Formulas are in docs/distributed.md; tests compare them with what the
// communicators counted.
#include <algorithm>

#include "plan_parts.h"
#include "titan/parallel/plan_exchanges.h"

namespace titan {
namespace {

constexpr int64_t kFp32 = 4;

void add(GroupTraffic& group, Collective kind, int64_t calls, int64_t bytes_of_all) {
  group.table[static_cast<size_t>(kind)] += Traffic{calls, bytes_of_all};
}

using Exchanges = std::vector<std::vector<WeightExchange>>;

/// What the weights have this communicator do.
void add_weights(const Exchanges& exchanges, GroupTraffic& traffic) {
  for (const std::vector<WeightExchange>& group : exchanges) {
    for (const WeightExchange& exchange : group) {
      if (exchange.communicator != traffic.group) continue;
      add(traffic, exchange.kind, exchange.traffic.calls, exchange.traffic.bytes);
    }
  }
}

/// One reduction for the largest magnitudes of all weights.
void add_precomputed_scales(const Plan& plan, GroupTraffic& traffic) {
  int64_t scales = 0;
  for (const WeightGroupPlan& group : plan.groups) scales += group.scaled_weights();
  if (plan.precomputes_scales() && scales > 0) add(traffic, Collective::all_reduce, 1, scales * kFp32);
}

void add_offload(Plan& plan) {
  if (!plan.request.cpu_offload) return;
  const std::vector<int64_t> gathers = gathers_per_step(plan);
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const WeightGroupPlan& group = plan.groups[g];
    plan.to_device_bytes += gathers[g] * group.gathered_shard_bytes();
    plan.to_host_bytes += group.shard_numel * kFp32;
  }
}

void add_data_parallel(Plan& plan, const Exchanges& exchanges) {
  const int64_t shards = plan.request.shards();
  const int64_t replicas = plan.request.place.mesh.size(MeshAxis::dp_replicate);
  for (const auto& [group, ranks] : {std::pair{group_names::kGather, shards}, std::pair{group_names::kScatter, shards},
                                     std::pair{group_names::kReplicate, replicas}}) {
    if (ranks == 1) continue;
    plan.traffic.push_back({group, ranks, {}});
    add_weights(exchanges, plan.traffic.back());
    if (group == std::string_view(group_names::kGather)) add_precomputed_scales(plan, plan.traffic.back());
  }
}

/// Per microbatch: two small all-reduces for each chunk of rows, or the logits of all ranks.
void add_loss(const Plan& plan, const ModelDescription& model, GroupTraffic& traffic) {
  const int64_t rows = plan.request.tokens();
  const int64_t chunk = (rows + plan.request.loss_chunks - 1) / plan.request.loss_chunks;
  const int64_t chunks = (rows + chunk - 1) / chunk;
  const int64_t microbatches = plan.request.accumulation;
  if (plan.request.loss_parallel) {
    add(traffic, Collective::all_reduce, microbatches * 2 * chunks, microbatches * 3 * rows * kFp32);
  } else {
    const int64_t padded = (model.vocabulary + traffic.ranks - 1) / traffic.ranks * traffic.ranks;
    add(traffic, Collective::all_gather, microbatches * chunks,
        microbatches * rows * padded * size_of(plan.units.back().compute));
  }
}

/// Weights in float8 among those of a linear group.
int64_t float8_weights(const Plan& plan, const StreamGroup& group) {
  return std::count_if(plan.float8_layers.begin(), plan.float8_layers.end(), [&](const LinearChoice& choice) {
    const auto& names = group.parameters;
    return choice.converted && std::find(names.begin(), names.end(), choice.layer + ".weight") != names.end();
  });
}

/// Of one microbatch: a linear group gathers its input for its products and again for its weight gradients, or the
/// gradient of its output; the other way it scatters. Where one scale serves a tensor of all ranks they agree on it:
/// for the input whenever products are made, or else in backward, and for the gradients of outputs together.
void add_linear_group(const Plan& plan, const UnitPlan& unit, const StreamGroup& group, GroupTraffic& traffic) {
  const int64_t microbatches = plan.request.accumulation;
  const int64_t rows = plan.request.tokens() * plan.stream_width;
  const int64_t wide = size_of(unit.compute);
  const int64_t converted = float8_weights(plan, group);
  const bool scales = plan.request.float8 && plan.request.float8->recipe == Float8Recipe::tensorwise && converted > 0;
  const int64_t narrow = scales && converted == static_cast<int64_t>(group.parameters.size()) ? 1 : wide;
  const int64_t gathers = microbatches * (group.reads ? group.forwards() + 1 : 1);
  const int64_t scatters = microbatches * (group.reads ? 1 : group.forwards());
  if (!plan.request.async_tensor_parallel) {
    add(traffic, Collective::all_gather, gathers, gathers * rows * narrow);
    add(traffic, Collective::reduce_scatter, scatters, scatters * rows * wide);
  }
  if (!scales) return;
  const int64_t of_inputs = microbatches * (unit.policy.checkpointed() ? 2 : 1);
  add(traffic, Collective::all_reduce, of_inputs + microbatches, (of_inputs + microbatches * converted) * kFp32);
}

void add_tensor_parallel(Plan& plan, const ModelDescription& model, const Exchanges& exchanges) {
  const int64_t ranks = plan.request.place.mesh.size(MeshAxis::tp);
  if (ranks == 1) return;
  GroupTraffic traffic{group_names::kTensor, ranks, {}};
  for (size_t u = 0; u < plan.units.size(); ++u) {
    const StreamExchanges exchanges = model.units[plan.units[u].chain_index].exchanges(plan.units[u].policy);
    for (const StreamGroup& group : exchanges.groups) add_linear_group(plan, plan.units[u], group, traffic);
    if (plan.request.async_tensor_parallel) continue;
    const int64_t stream = plan.request.tokens() * model.dim * size_of(plan.units[u].compute);
    const int64_t microbatches = plan.request.accumulation;
    add(traffic, Collective::all_gather, microbatches * exchanges.gathers, microbatches * exchanges.gathers * stream);
    add(traffic, Collective::reduce_scatter, microbatches * exchanges.scatters,
        microbatches * exchanges.scatters * stream);
  }
  if (plan.units.back().role == UnitRole::head) add_loss(plan, model, traffic);
  add_weights(exchanges, traffic);
  add_precomputed_scales(plan, traffic);
  plan.traffic.push_back(traffic);
}

/// Per microbatch and block with attention: keys and values go round in forward, again where attention is replayed, and
/// in backward, where the gradients of each rank's go once round and home.
void add_context_parallel(Plan& plan, const ModelDescription& model) {
  const int64_t ranks = plan.request.split().ranks;
  if (ranks == 1) return;
  GroupTraffic traffic{group_names::kContext, ranks, {}};
  for (size_t u = 0; u < plan.units.size(); ++u) {
    const int64_t numel = key_value_numel(plan.request, model.units[plan.units[u].chain_index]);
    if (numel == 0) continue;
    const RecomputePolicy& policy = plan.units[u].policy;
    const bool replayed = policy.checkpointed() && policy.of(ResultKind::attention, 0) != Keep::keep;
    const int64_t rounds = plan.request.accumulation * (replayed ? 3 : 2);
    const int64_t bytes = numel * size_of(plan.units[u].compute);
    if (plan.request.rotation == Rotation::all_gather) {
      add(traffic, Collective::all_gather, rounds, rounds * ranks * bytes);
    } else {
      add(traffic, Collective::permute, rounds * (ranks - 1), rounds * (ranks - 1) * bytes);
    }
    const int64_t hops = plan.request.accumulation * ranks;
    add(traffic, Collective::permute, hops, hops * numel * kFp32);
  }
  plan.traffic.push_back(traffic);
}

void add_scalars(Plan& plan) {
  const DeviceMesh& mesh = plan.request.place.mesh;
  const int64_t loss_ranks = mesh.size(MeshAxis::pp) * mesh.size(MeshAxis::dp_replicate) * plan.request.shards();
  if (loss_ranks > 1) {
    GroupTraffic traffic{group_names::kLoss, loss_ranks, {}};
    add(traffic, Collective::all_reduce, 1, plan.request.loss_message_bytes);
    plan.traffic.push_back(traffic);
  }
  const int64_t model_ranks = plan.request.shards() * mesh.size(MeshAxis::tp) * mesh.size(MeshAxis::pp);
  if (model_ranks > 1) {
    GroupTraffic traffic{group_names::kModel, model_ranks, {}};
    // Stepping in backward, each group's gradient is judged on its own.
    const int64_t norms = plan.request.step_in_backward ? static_cast<int64_t>(plan.groups.size()) : 1;
    add(traffic, Collective::all_reduce, norms, norms * plan.request.norm_message_bytes);
    plan.traffic.push_back(traffic);
  }
}

/// Streams and their gradients between the stages of a pipeline, and the gradients of tied weights.
void add_pipeline(Plan& plan, const Exchanges& exchanges) {
  if (!plan.request.pipeline) return;
  const PipelinePart& part = *plan.request.pipeline;
  const int64_t stream = plan.stream_rows * plan.stream_width * size_of(plan.request.compute);
  const int64_t passes = plan.request.accumulation / part.microbatches;
  GroupTraffic traffic{group_names::kPipeline, plan.request.place.mesh.size(MeshAxis::pp), {}};
  for (const Action& merged : part.actions) {
    const std::span<const Action> parts = leaves(merged);
    if (!is_transfer(parts[0].kind)) continue;
    const auto sends = std::count_if(parts.begin(), parts.end(), [](const Action& part) { return is_send(part.kind); });
    add(traffic, Collective::permute, passes, passes * sends * stream);
  }
  if (traffic.ranks > 1) plan.traffic.push_back(traffic);
  GroupTraffic twins{group_names::kTwins, 2, {}};
  add_weights(exchanges, twins);
  if (twins.table != TrafficTable{}) plan.traffic.push_back(twins);
}

}  // namespace

void add_traffic(Plan& plan, const ModelDescription& model) {
  const Exchanges exchanges = weight_exchanges(plan);
  add_offload(plan);
  add_data_parallel(plan, exchanges);
  add_tensor_parallel(plan, model, exchanges);
  add_pipeline(plan, exchanges);
  add_context_parallel(plan, model);
  add_scalars(plan);
}

}  // namespace titan
