// What one training step sends, by communicator: what its programs say, and what units communicate within themselves.
// Formulas are in docs/distributed.md; tests compare them with what the communicators counted.
#include <algorithm>

#include "plan_parts.h"
#include "titan/parallel/plan_exchanges.h"

namespace titan {
namespace {

constexpr int64_t kFp32 = 4;

void add(GroupTraffic& group, Collective kind, int64_t calls, int64_t bytes_of_all) {
  group.table[static_cast<size_t>(kind)] += Traffic{calls, bytes_of_all};
}

/// What the programs of a step have this communicator do.
GroupTraffic programs_traffic(const Plan& plan, std::string_view communicator, std::span<const RepeatedProgram> step) {
  GroupTraffic traffic{std::string(communicator), ranks_of(plan, communicator), {}};
  for (const auto& [program, times] : step) {
    for (const Action& action : program.actions) {
      for (const Exchange& exchange : exchanges_of(plan, action)) {
        if (exchange.communicator != communicator) continue;
        add(traffic, exchange.kind, times * exchange.traffic.calls, times * exchange.traffic.bytes);
      }
    }
  }
  return traffic;
}

void add_offload(Plan& plan, std::span<const RepeatedProgram> step) {
  for (const auto& [program, times] : step) {
    for (const Action& action : program.actions) {
      if (action.kind == ActionKind::unshard && plan.request.cpu_offload) {
        plan.to_device_bytes += times * plan.groups[static_cast<size_t>(action.group)].gathered_shard_bytes();
      }
      if (action.kind == ActionKind::to_host) {
        plan.to_host_bytes += plan.groups[static_cast<size_t>(action.group)].shard_numel * kFp32;
      }
    }
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

void add_tensor_parallel(const Plan& plan, const ModelDescription& model, GroupTraffic& traffic) {
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
}

/// Per microbatch and block with attention: keys and values go round in forward, again where attention is replayed, and
/// in backward, where the gradients of each rank's keys and values travel once around the ring.
void add_context_parallel(const Plan& plan, const ModelDescription& model, GroupTraffic& traffic) {
  const int64_t ranks = traffic.ranks;
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
}

}  // namespace

void add_traffic(Plan& plan, const ModelDescription& model, std::span<const RepeatedProgram> step) {
  using namespace group_names;
  add_offload(plan, step);
  for (const char* name : {kGather, kScatter, kReplicate, kTensor, kPipeline, kTied, kContext, kLoss, kModel}) {
    GroupTraffic traffic = programs_traffic(plan, name, step);
    if (traffic.ranks == 1 || (name == kTied && traffic.table == TrafficTable{})) continue;
    if (name == kTensor) add_tensor_parallel(plan, model, traffic);
    if (name == kContext) add_context_parallel(plan, model, traffic);
    plan.traffic.push_back(std::move(traffic));
  }
}

}  // namespace titan
