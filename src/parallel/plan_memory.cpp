// The memory tables: what one rank holds, by purpose.
#include <algorithm>
#include <numeric>

#include "plan_parts.h"
#include "plan_walk.h"
#include "titan/parallel/assembly.h"

namespace titan {
namespace {

int64_t sum(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

/// Bytes of this rank's shards in what they are multiplied in, as far as that is not the master itself.
int64_t copy_bytes(const Plan& plan) {
  int64_t total = 0;
  for (const WeightGroupPlan& group : plan.groups) {
    if (group.gathers_float8 || group.compute != plan.request.master) total += group.gathered_shard_bytes();
  }
  return total;
}

/// Chunks whose rows do not divide pass through padded memory from the beginning of a collective to its end: the own
/// one and all together. The most of it that lives at once in a step.
class PaddingWalk : public StepWalk {
 public:
  explicit PaddingWalk(const Plan& plan) : StepWalk(plan), plan_(plan) {}
  int64_t peak() const { return peak_; }

 protected:
  void gather_begins(size_t group) override { grow(of_gather(plan_.groups[group])); }
  void gather_ends(size_t group) override { live_ -= of_gather(plan_.groups[group]); }
  void reduction_begins(size_t group) override { grow(of_reduction(plan_.groups[group])); }
  void reduction_ends(size_t group) override { live_ -= of_reduction(plan_.groups[group]); }

 private:
  void grow(int64_t bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  /// A rank whose own chunk is full sends it as it is.
  int64_t of_gather(const WeightGroupPlan& group) const {
    int64_t bytes = 0;
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      const ParameterPlan& parameter = group.parameters[i];
      if (parameter.even(shards_)) continue;
      const int64_t chunks = shards_ + (parameter.shard.extent[0] == parameter.chunk_rows ? 0 : 1);
      bytes += chunks * parameter.chunk_numel() * group.gathered_size(i);
    }
    return bytes;
  }
  int64_t of_reduction(const WeightGroupPlan& group) const {
    int64_t numel = 0;
    for (const ParameterPlan& parameter : group.parameters) {
      if (!parameter.even(shards_)) numel += (shards_ + 1) * parameter.chunk_numel();
    }
    return numel * size_of(group.reduce);
  }

  const Plan& plan_;
  int64_t shards_ = plan_.request.shards();
  int64_t live_ = 0;
  int64_t peak_ = 0;
};

int64_t padding_bytes(const Plan& plan) {
  PaddingWalk walk(plan);
  walk.run();
  return walk.peak();
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

/// What ring attention holds of other ranks in one block's backward: keys and values, and in fp32 the own share of
/// their gradients, the one that arrives and the one that leaves.
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

/// What the stage's units keep of one microbatch, on the host or where they run.
int64_t saved_by(const Plan& plan, const StagePlan& stage, bool offloaded) {
  int64_t bytes = 0;
  for (size_t u = stage.first; u < stage.last; ++u) {
    if (plan.units[u].offloaded == offloaded) bytes += plan.units[u].saved_bytes;
  }
  return bytes;
}

/// The most that is kept from forward to backward at any time: one microbatch, or what the schedule lets pile up.
int64_t activation_peak(const Plan& plan, bool offloaded) {
  if (!plan.request.pipeline) return saved_by(plan, plan.stages[0], offloaded);
  int64_t now = 0, most = 0;
  for (const Action& merged : plan.request.pipeline->actions) {
    for (const Action& action : leaves(merged)) {
      if (!is_compute(action.kind)) continue;
      const int64_t bytes = saved_by(plan, stage_numbered(plan, action.stage), offloaded);
      if (action.kind == ActionKind::forward) now += bytes;
      most = std::max(most, now);
      // What weight gradients read stays until they are made.
      if (action.kind == ActionKind::backward || action.kind == ActionKind::weight_gradient) now -= bytes;
    }
  }
  return most;
}

/// Of offloaded activations: one unit's that leave or are read, and one's that come back beside them.
int64_t crossing_activations(const Plan& plan) {
  int64_t most = 0;
  for (const UnitPlan& unit : plan.units) {
    if (unit.offloaded) most = std::max(most, unit.saved_bytes);
  }
  return 2 * most;
}

/// Of offloaded moments: those of a parameter that is stepped, of the next one and of the one before, on their way.
int64_t crossing_moments(const Plan& plan) {
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

/// Gradients live no longer than their unit's backward.
bool gradients_pass(const Plan& plan) { return plan.request.step_in_backward && !plan.gathers_weights(); }

/// What is there in every step and between them.
std::vector<MemoryPurpose> standing_memory(const Plan& plan) {
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
  if (request.shards() > 1) add(table, "padding of uneven shards", padding_bytes(plan));
  add(table, "stream on its way", plan.peer_bytes());
  return table;
}

/// What forward and backward of a step's microbatches hold beside it.
std::vector<MemoryPurpose> microbatch_memory(const Plan& plan, const ModelDescription& model) {
  const PlanRequest& request = plan.request;
  std::vector<MemoryPurpose> table;
  add(table, "activations kept", activation_peak(plan, /*offloaded=*/false));
  add(table, "activations on the host", activation_peak(plan, /*offloaded=*/true), /*on_host=*/true);
  add(table, "activations on their way", crossing_activations(plan));
  add(table, "one block recomputed", replay_bytes(plan, model));
  add(table, "keys and values on their way", ring_bytes(plan, model));
  if (plan.units.back().role != UnitRole::head) return table;
  const int64_t words = request.loss_parallel ? own_words(request, model) : model.vocabulary;
  add(table, "logits of one chunk", 2 * chunk_rows(request) * words * size_of(ElementType::float32));
  return table;
}

void append(std::vector<MemoryPurpose>& table, const std::vector<MemoryPurpose>& more) {
  table.insert(table.end(), more.begin(), more.end());
}

}  // namespace

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

void add_memory(Plan& plan, const ModelDescription& model) {
  const std::vector<MemoryPurpose> standing = standing_memory(plan);
  const std::vector<MemoryPurpose> microbatch = microbatch_memory(plan, model);
  plan.memory = standing;
  if (gradients_pass(plan)) add(plan.memory, "gradients", largest_group(plan) * size_of(ElementType::float32));
  if (plan.request.offload_optimizer) add(plan.memory, "optimizer state on its way", crossing_moments(plan));
  append(plan.memory, microbatch);
  if (!plan.request.validation) return;
  plan.validation_memory = standing;
  // Graphs replay into memory that is theirs; validation runs without any.
  if (plan.request.cuda_graphs && !why_no_graphs(plan)) append(plan.validation_memory, microbatch);
  add(plan.validation_memory, "validation's forward", validation_forward_bytes(plan, model));
}

}  // namespace titan
