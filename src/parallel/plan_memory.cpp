// The memory of a step and of a validation, by purpose.
#include <algorithm>
#include <map>
#include <numeric>

#include "plan_parts.h"
#include "titan/parallel/assembly.h"

namespace titan {
namespace {

constexpr int64_t kWide = 4;  // bytes of a number in fp32

/// What ring attention holds besides queries, keys, values and output: keys and values of all ranks (or its own and the
/// ones being received), the fp32 accumulator, and temporaries of the plain operations that add to it.
int64_t ring_bytes(const PlanRequest& request, const ModelDescription& model, const UnitPlan& unit) {
  const int64_t ranks = request.split().ranks;
  if (ranks == 1 || model.units[unit.chain_index].key_features == 0) return 0;
  const int64_t size = size_of(unit.compute);
  const int64_t copies = request.rotation == Rotation::all_gather ? ranks + 1 : 2;
  const int64_t outputs = request.tokens() * model.heads * model.head_dim / request.place.mesh.size(MeshAxis::tp);
  const int64_t part = size + (size == kWide ? 2 : 3) * kWide;  // it, wide, its difference to the sum, weighted
  return copies * size * key_value_numel(request, model.units[unit.chain_index]) + kWide * outputs +
         (request.on_gpu ? (part - size) * outputs : 0);
}

/// Of one chunk, while its losses are computed.
int64_t logits_bytes(const PlanRequest& request, const ModelDescription& model, int64_t size) {
  const bool shared = request.place.mesh.size(MeshAxis::tp) > 1;
  const int64_t rows = chunk_rows(request);
  if (shared && request.loss_parallel) {
    const int64_t widened = size == kWide ? kWide : size + kWide;
    return rows * own_words(request, model) * (request.fused_loss ? size : widened);
  }
  // Gathered logits exist twice (shards and their concatenation); without fused kernels, fp32 log-probabilities are
  // added.
  const int64_t words = model.vocabulary + (shared ? model.vocabulary + own_words(request, model) : 0);
  return rows * std::max(size * words, request.fused_loss ? 0 : 2 * kWide * model.vocabulary);
}

int64_t forward_bytes(const UnitDescription& unit, const ActivationShape& shape) {
  return unit.forward_bytes ? unit.forward_bytes(shape) : unit.saved_bytes(shape, RecomputePolicy::none());
}

int64_t sum(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

/// Bytes of the compute copies of this rank's shards.
int64_t copy_bytes(const Plan& plan) {
  int64_t total = 0;
  for (const WeightGroupPlan& group : plan.groups) {
    if (plan.copies_weights(group)) total += group.gathered_shard_bytes();
  }
  return total;
}

/// Chunks of parameters whose rows do not divide evenly are padded for the time of a collective: this rank's chunk
/// (unless it is full) and those of all ranks.
int64_t gather_padding(const WeightGroupPlan& group, int64_t shards) {
  int64_t bytes = 0;
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    const ParameterPlan& parameter = group.parameters[i];
    if (parameter.even(shards)) continue;
    const int64_t chunks = shards + (parameter.shard.extent[0] == parameter.chunk_rows ? 0 : 1);
    bytes += chunks * parameter.chunk_numel() * group.gathered_size(i);
  }
  return bytes;
}

int64_t scatter_padding(const WeightGroupPlan& group, int64_t shards) {
  int64_t numel = 0;
  for (const ParameterPlan& parameter : group.parameters) {
    if (!parameter.even(shards)) numel += (shards + 1) * parameter.chunk_numel();
  }
  return numel * size_of(group.reduce);
}

/// The peak of both together in a step.
int64_t padding_bytes(const Plan& plan, std::span<const RepeatedProgram> step) {
  const int64_t shards = plan.request.shards();
  std::map<int, int64_t> gathers, scatters;  // started and not waited for: bytes by group
  int64_t live = 0, peak = 0;
  auto begin = [&](std::map<int, int64_t>& under_way, int group, int64_t bytes) {
    under_way[group] = bytes;
    peak = std::max(peak, live += bytes);
  };
  auto end = [&](std::map<int, int64_t>& under_way, int group) {
    const auto found = under_way.find(group);
    if (found == under_way.end()) return;
    live -= found->second;
    under_way.erase(found);
  };
  for (const auto& [program, times] : step) {
    for (const Action& action : program.actions) {
      if (action.group < 0) continue;
      const WeightGroupPlan& group = plan.groups[static_cast<size_t>(action.group)];
      if (action.kind == ActionKind::unshard) begin(gathers, action.group, gather_padding(group, shards));
      if (action.kind == ActionKind::wait_unshard) end(gathers, action.group);
      if (action.kind == ActionKind::reduce_scatter) begin(scatters, action.group, scatter_padding(group, shards));
      if (action.kind == ActionKind::wait_reduce) end(scatters, action.group);
    }
  }
  return peak;
}

int64_t replay_bytes(const Plan& plan, const ModelDescription& model) {
  int64_t most = 0;
  for (size_t u = 0; u < plan.units.size(); ++u) {
    const UnitPlan& unit = plan.units[u];
    if (!unit.policy.checkpointed()) continue;
    const ActivationShape shape = activation_shape(plan.request, unit.compute);
    most = std::max(most, model.units[unit.chain_index].saved_bytes(shape, RecomputePolicy::none()) - unit.saved_bytes);
  }
  return most;
}

/// What ring attention holds of other ranks in one block's backward: keys and values, and three fp32 shares of their
/// gradients (computed, being received, being sent).
int64_t ring_bytes(const Plan& plan, const ModelDescription& model) {
  const int64_t ranks = plan.request.split().ranks;
  if (ranks == 1) return 0;
  const int64_t copies = plan.request.rotation == Rotation::all_gather ? ranks + 1 : 2;
  int64_t most = 0;
  for (size_t u = 0; u < plan.units.size(); ++u) {
    const int64_t numel = key_value_numel(plan.request, model.units[plan.units[u].chain_index]);
    most = std::max(most, numel * (copies * size_of(plan.units[u].compute) + 3 * size_of(ElementType::float32)));
  }
  return most;
}

int64_t largest_group(const Plan& plan) {
  int64_t most = 0;
  for (const WeightGroupPlan& group : plan.groups) most = std::max(most, group.numel);
  return most;
}

/// Peak of the activations that units keep from forward to backward, of all microbatches that are between the two;
/// `offloaded`: of those on the host.
int64_t activation_peak(const Plan& plan, std::span<const RepeatedProgram> step, bool offloaded) {
  const bool deferred = plan.request.splits_backward();
  int64_t now = 0, most = 0;
  auto bytes_of = [&](const UnitPlan& unit) { return unit.offloaded == offloaded ? unit.saved_bytes : 0; };
  auto stage_bytes = [&](int number) {
    const StagePlan& stage = stage_numbered(plan, number);
    int64_t bytes = 0;
    for (size_t u = stage.first; u < stage.last; ++u) bytes += bytes_of(plan.units[u]);
    return bytes;
  };
  for (const auto& [program, times] : step) {
    for (const Action& whole : program.actions) {
      for (const Action& action : leaves(whole)) {
        if (action.kind == ActionKind::forward) now += bytes_of(plan.units[static_cast<size_t>(action.unit)]);
        most = std::max(most, now);
        // What weight gradients read stays until they are computed.
        const bool frees = action.kind == ActionKind::backward && !deferred;
        if (frees) now -= bytes_of(plan.units[static_cast<size_t>(action.unit)]);
        if (action.kind == ActionKind::weight_gradient) now -= stage_bytes(action.stage);
      }
    }
  }
  return most;
}

/// Offloaded activations on the device: those of one unit being copied to the host or read, and of one being fetched.
int64_t offloaded_activations(const Plan& plan) {
  int64_t most = 0;
  for (const UnitPlan& unit : plan.units) {
    if (unit.offloaded) most = std::max(most, unit.saved_bytes);
  }
  return 2 * most;
}

/// Offloaded moments on the device: of the parameter that is stepped, and of its neighbours, which are being copied.
int64_t offloaded_moments(const Plan& plan) {
  std::vector<int64_t> numels;
  for (const WeightGroupPlan& group : plan.groups) {
    for (const ParameterPlan& parameter : group.parameters) numels.push_back(parameter.shard.numel());
  }
  std::sort(numels.rbegin(), numels.rend());
  numels.resize(std::min(numels.size(), size_t{3}));
  return sum(numels) * plan.request.optimizer_moments * size_of(plan.request.optimizer_state);
}

void add(std::vector<MemoryPurpose>& table, const char* name, int64_t bytes, bool on_host = false) {
  if (bytes > 0) table.push_back({name, bytes, on_host});
}

/// Gradients are freed after their unit's backward.
bool gradients_pass(const Plan& plan) { return plan.request.step_in_backward && !plan.gathers_weights(); }

/// Memory that is held all the time.
std::vector<MemoryPurpose> standing_memory(const Plan& plan, std::span<const RepeatedProgram> step) {
  const PlanRequest& request = plan.request;
  int64_t owned = 0;
  for (const WeightGroupPlan& group : plan.groups) owned += group.shard_numel;
  std::vector<MemoryPurpose> table;
  add(table, "parameters", owned * size_of(request.master), request.cpu_offload);
  add(table, "parameters, compute copy", copy_bytes(plan), request.cpu_offload);
  add(table, "gathered weights", sum(plan.weight_slots));
  add(table, "gradients before reduction", sum(plan.gradient_slots));
  add(table, "gradients, narrowed", sum(plan.message_slots));
  if (!gradients_pass(plan)) add(table, "gradients", owned * size_of(ElementType::float32), request.cpu_offload);
  add(table, "optimizer state", owned * request.optimizer_moments * size_of(request.optimizer_state),
      request.cpu_offload || request.offload_optimizer);
  if (request.shards() > 1) add(table, "padding of uneven shards", padding_bytes(plan, step));
  add(table, "peer memory, hidden states", plan.peer_bytes());
  return table;
}

/// Memory that forward and backward of a step's microbatches add.
std::vector<MemoryPurpose> microbatch_memory(const Plan& plan, const ModelDescription& model,
                                             std::span<const RepeatedProgram> step) {
  const PlanRequest& request = plan.request;
  std::vector<MemoryPurpose> table;
  add(table, "activations kept", activation_peak(plan, step, /*offloaded=*/false));
  add(table, "activations on the host", activation_peak(plan, step, /*offloaded=*/true), /*on_host=*/true);
  add(table, "activations being copied", offloaded_activations(plan));
  add(table, "one block recomputed", replay_bytes(plan, model));
  add(table, "keys and values of other ranks", ring_bytes(plan, model));
  if (plan.units.back().role != UnitRole::head) return table;
  const int64_t words = request.loss_parallel ? own_words(request, model) : model.vocabulary;
  add(table, "logits of one chunk", 2 * chunk_rows(request) * words * size_of(ElementType::float32));
  return table;
}

void append(std::vector<MemoryPurpose>& table, const std::vector<MemoryPurpose>& more) {
  table.insert(table.end(), more.begin(), more.end());
}

}  // namespace

PlanRequest validation_request(const PlanRequest& training) {
  PlanRequest request = training;
  request.samples = training.validation->samples;
  request.sequence_length = training.validation->sequence_length;
  return request;
}

int64_t validation_forward_bytes(const Plan& plan, const ModelDescription& model) {
  const PlanRequest request = validation_request(plan.request);
  int64_t most = 0;
  for (const StagePlan& stage : plan.stages) {
    for (size_t u = stage.first; u < stage.last; ++u) {
      const UnitPlan& unit = plan.units[u];
      ActivationShape shape = activation_shape(request, unit.compute);
      shape.ring_bytes = ring_bytes(request, model, unit);
      int64_t bytes = forward_bytes(model.units[unit.chain_index], shape);
      if (unit.role == UnitRole::head) bytes += logits_bytes(request, model, size_of(unit.compute));
      most = std::max(most, bytes);
    }
  }
  constexpr int64_t kTokenAndLabel = 16;
  return most + kTokenAndLabel * request.tokens();
}

int64_t chunk_rows(const PlanRequest& request) {
  return (request.tokens() + request.loss_chunks - 1) / request.loss_chunks;
}

int64_t own_words(const PlanRequest& request, const ModelDescription& model) {
  const int64_t ranks = request.place.mesh.size(MeshAxis::tp);
  return (model.vocabulary + ranks - 1) / ranks;
}

void add_offload_traffic(Plan& plan) {
  for (const UnitPlan& unit : plan.units) {
    if (unit.offloaded) plan.activation_offload_bytes += plan.request.accumulation * unit.saved_bytes;
  }
  if (!plan.request.offload_optimizer) return;
  int64_t owned = 0;
  for (const WeightGroupPlan& group : plan.groups) owned += group.shard_numel;
  plan.optimizer_offload_bytes = owned * plan.request.optimizer_moments * size_of(plan.request.optimizer_state);
}

void add_memory(Plan& plan, const ModelDescription& model, std::span<const RepeatedProgram> step) {
  const std::vector<MemoryPurpose> standing = standing_memory(plan, step);
  const std::vector<MemoryPurpose> microbatch = microbatch_memory(plan, model, step);
  plan.memory = standing;
  if (gradients_pass(plan)) add(plan.memory, "gradients", largest_group(plan) * size_of(ElementType::float32));
  if (plan.request.offload_optimizer) add(plan.memory, "optimizer state on the device", offloaded_moments(plan));
  append(plan.memory, microbatch);
  if (!plan.request.validation) return;
  plan.validation_memory = standing;
  // Graphs keep the memory of their microbatch; validation runs without graphs.
  if (plan.request.cuda_graphs && !why_no_graphs(plan.request)) append(plan.validation_memory, microbatch);
  add(plan.validation_memory, "validation's forward", validation_forward_bytes(plan, model));
}

}  // namespace titan
