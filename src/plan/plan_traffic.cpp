// What one training step sends, by communicator: by its programs (exchanges_of), and within units. Formulas are in
// docs/distributed.md; tests compare them with the communicators' counts.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "plan_parts.h"
#include "titan/base/text.h"
#include "titan/schedule/rules.h"

namespace titan {
namespace {

constexpr int64_t kFloat32 = 4, kFloat64 = 8;

/// Elements of all ranks' chunks of a group's gradient, padding included.
int64_t scattered_numel(const WeightGroupPlan& group) {
  int64_t total = 0;
  for (const ParameterPlan& parameter : group.parameters) {
    if (parameter.spec.trainable) total += group.axes.shards * parameter.chunk_numel();
  }
  return total;
}

/// Bytes of all ranks' chunks of a group as its weights are gathered.
int64_t gathered_bytes(const WeightGroupPlan& group) {
  int64_t total = 0;
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    total += group.axes.shards * group.parameters[i].chunk_numel() * group.gathered_size(i);
  }
  return total;
}

/// Adds the exchanges that find the scales of `scales` weights: an all-reduce of their amaxes over the ranks that share
/// matrices. If scales are found before weights are gathered, one over the communicator `shards` comes first; it is
/// empty otherwise.
void add_scales(std::vector<Exchange>& all, int64_t scales, std::string_view shards) {
  if (scales == 0) return;
  const Traffic traffic{1, scales * kFloat32};
  if (!shards.empty()) all.push_back({shards, Collective::all_reduce, traffic});
  all.push_back({communicator_names::kTensor, Collective::all_reduce, traffic});
}

std::vector<Exchange> group_exchanges(const Plan& plan, const Action& action) {
  using enum Collective;
  const WeightGroupPlan& group = plan.groups[static_cast<size_t>(action.group)];
  const GroupAxes& axes = group.axes;
  std::vector<Exchange> all;
  switch (action.kind) {
    case ActionKind::refresh: {
      const bool finds = !group.gathers || (group.gathers_float8 && !plan.precomputes_scales());
      if (finds) add_scales(all, group.scaled_weights(), group.gathers_float8 ? axes.gather : std::string_view());
      break;
    }
    case ActionKind::scale:
      add_scales(all, group.scaled_weights(), {});
      break;
    case ActionKind::unshard:
      all.push_back({axes.gather, all_gather, {1, gathered_bytes(group)}});
      break;
    case ActionKind::reduce_scatter: {
      all.push_back({axes.scatter, Collective::reduce_scatter, {1, scattered_numel(group) * size_of(group.reduce)}});
      break;
    }
    case ActionKind::all_reduce:
      all.push_back({axes.replicate, Collective::all_reduce, {1, group.trained_shard_numel() * size_of(group.reduce)}});
      break;
    case ActionKind::reduce_partial:
      all.push_back({communicator_names::kTensor, Collective::all_reduce, {1, group.partial_numel() * kFloat32}});
      break;
    case ActionKind::collect: {
      const MatrixBytes bytes = matrix_bytes(plan, group);
      const int64_t own_parts_of_owned = bytes.parts - bytes.shards;
      all.push_back({group.matrix_communicator, permute, {1, bytes.collected}, bytes.owned - own_parts_of_owned});
      break;
    }
    case ActionKind::transform: {
      const MatrixBytes bytes = matrix_bytes(plan, group);
      all.push_back({group.matrix_communicator, permute, {1, bytes.returned}, bytes.shards});
      break;
    }
    case ActionKind::add_tied:
      all.push_back({communicator_names::kTied, Collective::all_reduce, {1, group.trained_shard_numel() * kFloat32}});
      break;
    default:
      break;
  }
  return all;
}

std::vector<Exchange> step_exchanges(const Plan& plan, const Action& action) {
  std::vector<Exchange> all;
  if (action.kind == ActionKind::loss_sum) {
    const int64_t statistics = kFloat64 * plan.statistics_numel();
    all.push_back({communicator_names::kLoss, Collective::all_reduce, {1, kLossMessageBytes + statistics}});
    // Tensor-parallel ranks have the same loss, but statistics of different tokens.
    if (statistics > 0) all.push_back({communicator_names::kTensor, Collective::all_reduce, {1, statistics}});
  } else if (action.kind == ActionKind::scale) {
    // Groups with the same shards send their amaxes in one message, as WeightStore::scale_shards does.
    std::map<std::string_view, int64_t> scales;
    for (const WeightGroupPlan& group : plan.groups) {
      if (group.gathers_float8 && group.is_trained()) scales[group.axes.gather] += group.scaled_weights();
    }
    for (const auto& [shards, count] : scales) add_scales(all, count, shards);
  } else if (is_transfer(leaves(action)[0].kind)) {
    int64_t sent = 0;
    for (const Action& part : leaves(action)) {
      if (is_send(part.kind)) sent += plan.message_bytes(plan.message_of(part.stage, carried_by(part).backward));
    }
    all.push_back({communicator_names::kPipeline, Collective::permute, {1, sent}});
  }
  return all;
}

void add_communicators(const GroupAxes& axes, std::set<std::string>& names) {
  using namespace communicator_names;
  for (const std::string& name : {axes.gather, axes.scatter, axes.replicate}) {
    if (!name.empty() && name != kGather && name != kScatter && name != kReplicate) names.insert(name);
  }
}

void add(CommunicatorTraffic& communicator, Collective kind, int64_t calls, int64_t bytes_of_all) {
  communicator.table[static_cast<size_t>(kind)] += Traffic{calls, bytes_of_all};
}

/// The traffic of a step's programs through this communicator.
CommunicatorTraffic programs_traffic(const Plan& plan, std::string_view communicator,
                                     std::span<const RepeatedProgram> step) {
  CommunicatorTraffic traffic{std::string(communicator), ranks_of(plan, communicator), {}};
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
      const auto posts = [&](Thing thing) { return has_effect(action_rules(), action.kind, Does::posts, thing); };
      if (posts(Thing::gather) && plan.request.training.enable_cpu_offload) {
        plan.to_device_bytes += times * plan.groups[static_cast<size_t>(action.group)].gathered_shard_bytes();
      }
      if (posts(Thing::host_copy)) {
        plan.to_host_bytes += plan.groups[static_cast<size_t>(action.group)].trained_shard_numel() * kFloat32;
      }
    }
  }
}

/// Traffic within units, for all microbatches.
void add_units(const Plan& plan, CommunicatorTraffic& traffic) {
  using Phase = UnitTrace::Phase;
  const int64_t microbatches = plan.request.accumulation;
  for (const UnitPlan& unit : plan.units) {
    for (const Phase phase : {Phase::forward, Phase::replay, Phase::backward}) {
      for (const UnitTrace::Part& part : unit.trace->parts(phase, unit.policy)) {
        for (const TracedMessage* message : part.messages) {
          if (message->communicator != traffic.communicator || message->through_peer_memory) continue;
          add(traffic, message->kind, microbatches * message->traffic.calls, microbatches * message->traffic.bytes);
        }
      }
    }
  }
}

}  // namespace

std::vector<std::string> weight_communicators(const std::vector<WeightGroupPlan>& groups) {
  std::set<std::string> names;
  for (const WeightGroupPlan& group : groups) {
    add_communicators(group.axes, names);
    if (!group.matrices.empty()) names.insert(group.matrix_communicator);
  }
  return {names.begin(), names.end()};
}

std::vector<std::string> weight_communicators(const ModelDescription& model, const PlanRequest& request) {
  std::set<std::string> names;
  for (const UnitDescription& unit : model.units) {
    for (size_t group = 0; group < unit.groups.size(); ++group) {
      const WeightGroupPlan planned = plan_group(unit, group, request);
      add_communicators(planned.axes, names);
      if (!planned.matrices.empty()) names.insert(planned.matrix_communicator);
    }
  }
  return {names.begin(), names.end()};
}

std::vector<Exchange> exchanges_of(const Plan& plan, const Action& action) {
  // Checked first: the norm of one group names the group, and is summed over the same ranks as that of all.
  if (action.kind == ActionKind::norm) {
    return {{communicator_names::kModel, Collective::all_reduce, {1, kNormMessageBytes}}};
  }
  return action.group >= 0 ? group_exchanges(plan, action) : step_exchanges(plan, action);
}

std::vector<int64_t> members_of(const Plan& plan, std::string_view communicator) {
  std::vector<int64_t> members = plan.request.place.mesh.members(plan.request.place.rank, axes_of(communicator));
  if (communicator != communicator_names::kTied) return members;
  const std::vector<int64_t>& owners = plan.request.pipeline->rank_of_stage;
  return {members[static_cast<size_t>(owners.front())], members[static_cast<size_t>(owners.back())]};
}

int64_t ranks_of(const Plan& plan, std::string_view communicator) {
  return communicator == communicator_names::kTied ? 2 : plan.request.place.mesh.size(axes_of(communicator));
}

std::vector<std::vector<Exchange>> weight_exchanges(const Plan& plan) {
  std::vector<std::vector<Exchange>> all(plan.groups.size());
  for (const auto& [program, times] : step_programs(plan, settled_state(plan))) {
    for (const Action& action : program.actions) {
      if (action.group < 0 || action.kind == ActionKind::norm) continue;
      std::vector<Exchange>& own = all[static_cast<size_t>(action.group)];
      for (const Exchange& exchange : exchanges_of(plan, action)) {
        if (ranks_of(plan, exchange.communicator) == 1) continue;
        const auto same = std::find_if(own.begin(), own.end(), [&](const Exchange& other) {
          return other.communicator == exchange.communicator && other.kind == exchange.kind &&
                 other.traffic.bytes == exchange.traffic.bytes * other.traffic.calls;
        });
        const Traffic traffic{exchange.traffic.calls * times, exchange.traffic.bytes * times};
        if (same == own.end()) {
          own.push_back({exchange.communicator, exchange.kind, traffic});
        } else {
          same->traffic += traffic;
        }
      }
    }
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

void add_traffic(Plan& plan, std::span<const RepeatedProgram> step) {
  using namespace communicator_names;
  add_offload(plan, step);
  std::vector<std::string> names{kGather, kScatter, kReplicate};
  for (std::string& name : weight_communicators(plan.groups)) names.push_back(std::move(name));
  names.insert(names.end(), {kTensor, kPipeline, kTied, kContext, kLoss, kModel});
  for (const std::string& name : names) {
    CommunicatorTraffic traffic = programs_traffic(plan, name, step);
    if (traffic.ranks == 1 || (name == kTied && traffic.table == TrafficTable{})) continue;
    add_units(plan, traffic);
    plan.traffic.push_back(std::move(traffic));
  }
}

}  // namespace titan
