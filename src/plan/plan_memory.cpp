// The memory of a step and of a validation, by purpose.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "plan_parts.h"
#include "titan/base/error.h"

namespace titan {
namespace {

int64_t sum(const std::vector<int64_t>& values) { return std::accumulate(values.begin(), values.end(), int64_t{0}); }

/// Bytes of the compute copies of this rank's shards.
int64_t copy_bytes(const Plan& plan) {
  int64_t total = 0;
  for (const WeightGroupPlan& group : plan.groups) {
    if (plan.copies_weights(group)) total += group.gathered_shard_bytes();
  }
  return total;
}

/// Chunks of parameters whose rows do not divide evenly are padded during a collective: this rank's chunk (unless it is
/// full) and those of all ranks.
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
    if (parameter.spec.trainable && !parameter.even(shards)) numel += (shards + 1) * parameter.chunk_numel();
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

/// Elements of the largest gradient of a group.
int64_t largest_gradient(const Plan& plan) {
  int64_t most = 0;
  for (const WeightGroupPlan& group : plan.groups) most = std::max(most, group.trained_numel());
  return most;
}

/// Bytes of activations during a step: saved tensors of all microbatches between forward and backward, hidden states in
/// transit between stages, and the unit that runs.
class ActivationWalk {
 public:
  explicit ActivationWalk(const Plan& plan) : plan_(plan) {}

  struct Peak {
    int64_t kept = 0;     // by all units
    int64_t working = 0;  // by the unit that runs, in addition
    const Action* at = nullptr;
    int64_t bytes() const { return kept + working; }
  };

  void run(const Action& whole) {
    for (const Action& action : leaves(whole)) step(action);
  }
  const Peak& peak() const { return peak_; }
  int64_t host_peak() const { return host_peak_; }
  /// True if everything kept or sent has been used.
  bool is_balanced() const { return kept_ == 0 && on_their_way_ == 0 && on_host_ == 0; }

 private:
  void step(const Action& action) {
    using enum ActionKind;
    const int64_t message = plan_.hidden_rows * plan_.hidden_width * size_of(plan_.request.compute);
    if (is_transfer(action.kind)) on_their_way_ += is_send(action.kind) ? -message : message;
    if (action.kind == weight_gradient) kept_ -= stage_bytes(action.stage);
    if (action.kind != forward && action.kind != backward) return;
    const UnitPlan& unit = plan_.units[static_cast<size_t>(action.unit)];
    const bool is_forward = action.kind == forward;
    const bool is_first = unit.is_stages_first, is_last = is_stages_last(static_cast<size_t>(action.unit));
    // A message from another stage is now the unit's input (hidden states) or its output's gradient.
    if (is_forward ? is_first && unit.chain_index > 0 : is_last && !unit.is_models_last) on_their_way_ -= message;
    if (is_forward) {
      note(unit.forward_peak, action);
      change(unit, unit.saved_bytes);
      if (is_last && !unit.is_models_last) on_their_way_ += message;
    } else {
      note(unit.backward_peak - (unit.offloaded ? 0 : unit.saved_bytes), action);
      change(unit, -unit.saved_bytes);
      if (plan_.request.splits_backward()) kept_ += unit.trace->deferred_bytes(unit.policy);
      if (is_first && unit.chain_index > 0) on_their_way_ += message;
    }
  }

  void change(const UnitPlan& unit, int64_t bytes) {
    (unit.offloaded ? on_host_ : kept_) += bytes;
    host_peak_ = std::max(host_peak_, on_host_);
  }
  void note(int64_t working, const Action& action) {
    const Peak now{kept_ + on_their_way_, working, &action};
    if (now.bytes() > peak_.bytes()) peak_ = now;
  }
  bool is_stages_last(size_t unit) const {
    return std::any_of(plan_.stages.begin(), plan_.stages.end(),
                       [&](const StagePlan& stage) { return stage.last == unit + 1; });
  }
  int64_t stage_bytes(int number) const {
    const StagePlan& stage = stage_numbered(plan_, number);
    int64_t bytes = 0;
    for (size_t u = stage.first; u < stage.last; ++u)
      bytes += plan_.units[u].trace->deferred_bytes(plan_.units[u].policy);
    return bytes;
  }

  const Plan& plan_;
  int64_t kept_ = 0, on_their_way_ = 0, on_host_ = 0, host_peak_ = 0;
  Peak peak_;
};

/// Offloaded activations on the device: those of one unit being copied to the host or read, and of one being fetched.
int64_t offloaded_activations(const Plan& plan) {
  int64_t most = 0;
  for (const UnitPlan& unit : plan.units) {
    if (unit.offloaded) most = std::max(most, unit.saved_bytes);
  }
  return 2 * most;
}

/// Offloaded moments on the device: of the parameter being stepped, and of its neighbours, which are being copied.
int64_t offloaded_moments(const Plan& plan) {
  std::vector<int64_t> numels;
  for (const WeightGroupPlan& group : plan.groups) {
    for (const ParameterPlan& parameter : group.parameters) {
      if (parameter.spec.trainable) numels.push_back(parameter.shard.numel());
    }
  }
  std::sort(numels.rbegin(), numels.rend());
  numels.resize(std::min(numels.size(), size_t{3}));
  return sum(numels) * plan.request.optimizer_moments * size_of(plan.request.optimizer_state);
}

void add(std::vector<MemoryPurpose>& table, const char* name, int64_t bytes, bool on_host = false) {
  if (bytes > 0) table.push_back({name, bytes, on_host});
}

/// True if gradients are freed after their unit's backward.
bool gradients_pass(const Plan& plan) { return plan.request.step_in_backward && !plan.gathers_weights(); }

/// Memory that is held all the time.
std::vector<MemoryPurpose> persistent_memory(const Plan& plan, std::span<const RepeatedProgram> step) {
  const PlanRequest& request = plan.request;
  int64_t owned = 0, trained = 0;
  for (const WeightGroupPlan& group : plan.groups) {
    owned += group.shard_numel;
    trained += group.trained_shard_numel();
  }
  std::vector<MemoryPurpose> table;
  add(table, "parameters", owned * size_of(request.master), request.cpu_offload);
  add(table, "parameters, compute copy", copy_bytes(plan), request.cpu_offload);
  add(table, "gathered weights", sum(plan.weight_slots));
  add(table, "gradients before reduction", sum(plan.gradient_slots));
  add(table, "gradients, narrowed", sum(plan.message_slots));
  if (!gradients_pass(plan)) add(table, "gradients", trained * size_of(ElementType::float32), request.cpu_offload);
  add(table, "optimizer state", trained * request.optimizer_moments * size_of(request.optimizer_state),
      request.cpu_offload || request.offload_optimizer);
  if (request.shards() > 1) add(table, "padding of uneven shards", padding_bytes(plan, step));
  add(table, "peer memory, hidden states", plan.peer_bytes());
  return table;
}

/// Memory that forward and backward of a step's microbatches add.
std::vector<MemoryPurpose> microbatch_memory(Plan& plan, std::span<const RepeatedProgram> step) {
  ActivationWalk walk(plan);
  for (const auto& [program, times] : step) {
    for (const Action& action : program.actions) walk.run(action);
  }
  TITAN_CHECK(walk.is_balanced(), plan.request.place.rank);
  if (walk.peak().at) plan.peak = to_line(plan, *walk.peak().at);
  std::vector<MemoryPurpose> table;
  add(table, "activations kept", walk.peak().kept);
  add(table, "activations on the host", walk.host_peak(), /*on_host=*/true);
  add(table, "activations being copied", offloaded_activations(plan));
  add(table, "the unit that runs", walk.peak().working);
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
  std::set<const UnitTrace*> seen;  // units that share a trace in training share one in validation
  for (const UnitPlan& unit : plan.units) {
    if (!seen.insert(unit.trace.get()).second) continue;
    most = std::max(most, trace_unit(plan, request, unit, model.units[unit.chain_index])->evaluation_peak());
  }
  constexpr int64_t kTokenAndLabel = 16;
  return most + kTokenAndLabel * request.tokens();
}

void add_offload_traffic(Plan& plan) {
  for (const UnitPlan& unit : plan.units) {
    if (unit.offloaded) plan.activation_offload_bytes += plan.request.accumulation * unit.saved_bytes;
  }
  if (!plan.request.offload_optimizer) return;
  int64_t trained = 0;
  for (const WeightGroupPlan& group : plan.groups) trained += group.trained_shard_numel();
  plan.optimizer_offload_bytes = trained * plan.request.optimizer_moments * size_of(plan.request.optimizer_state);
}

void add_memory(Plan& plan, const ModelDescription& model, std::span<const RepeatedProgram> step) {
  const std::vector<MemoryPurpose> persistent = persistent_memory(plan, step);
  const std::vector<MemoryPurpose> microbatch = microbatch_memory(plan, step);
  plan.memory = persistent;
  if (gradients_pass(plan)) add(plan.memory, "gradients", largest_gradient(plan) * size_of(ElementType::float32));
  if (plan.request.offload_optimizer) add(plan.memory, "optimizer state on the device", offloaded_moments(plan));
  append(plan.memory, microbatch);
  if (!plan.request.validation) return;
  plan.validation_memory = persistent;
  // Graphs keep the memory of their microbatch; validation runs without graphs.
  if (plan.request.cuda_graphs && !why_no_graphs(plan.request)) append(plan.validation_memory, microbatch);
  add(plan.validation_memory, "validation's forward", validation_forward_bytes(plan, model));
}

}  // namespace titan
