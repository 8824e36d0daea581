// The memory of a step and of a validation, by purpose.
#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "plan_parts.h"
#include "rank_machine.h"
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
int64_t gather_padding(const WeightGroupPlan& group) {
  const int64_t shards = group.axes.shards;
  int64_t bytes = 0;
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    const ParameterPlan& parameter = group.parameters[i];
    if (parameter.even(shards)) continue;
    const int64_t chunks = shards + (parameter.shard.extent[0] == parameter.chunk_rows ? 0 : 1);
    bytes += chunks * parameter.chunk_numel() * group.gathered_size(i);
  }
  return bytes;
}

int64_t scatter_padding(const WeightGroupPlan& group) {
  const int64_t shards = group.axes.shards;
  int64_t numel = 0;
  for (const ParameterPlan& parameter : group.parameters) {
    if (parameter.spec.trainable && !parameter.even(shards)) numel += (shards + 1) * parameter.chunk_numel();
  }
  return numel * size_of(group.reduce);
}

/// True if the group's gradient is freed when its optimizer step has run, in backward.
bool gradient_passes(const Plan& plan, const WeightGroupPlan& group) {
  return plan.request.optimizer.early_step_in_backward && !group.gathers;
}

/// Bytes of the gradients that stay until the step.
int64_t kept_gradients(const Plan& plan) {
  int64_t kept = 0;
  for (const WeightGroupPlan& group : plan.groups) {
    if (!gradient_passes(plan, group)) kept += group.gradient_bytes();
  }
  return kept;
}
/// Bytes of the largest gradient that is there only during its backward.
int64_t largest_passing_gradient(const Plan& plan) {
  int64_t most = 0;
  for (const WeightGroupPlan& group : plan.groups) {
    if (gradient_passes(plan, group)) most = std::max(most, group.gradient_bytes());
  }
  return most;
}

/// Adds up what a rank holds during a step: saved tensors between forward and backward, hidden states in transit
/// between stages, padding of collectives in flight, and the unit that runs.
class HeldBytes : public RankObserver {
 public:
  explicit HeldBytes(const Plan& plan) : plan_(plan) {}

  struct Peak {
    int64_t kept = 0;     // by all units
    int64_t working = 0;  // by the unit that runs, in addition
    const Action* at = nullptr;
    int64_t bytes() const { return kept + working; }
  };

  const Peak& peak() const { return peak_; }
  int64_t host_peak() const { return host_peak_; }
  int64_t padding_peak() const { return padding_peak_; }
  int64_t matrix_peak() const { return matrix_peak_; }
  /// True if everything kept or sent has been used.
  bool is_balanced() const { return kept_ == 0 && on_host_ == 0; }

  void changed(const Token& token, bool held) override {
    using enum Thing;
    const int64_t sign = held ? 1 : -1;
    switch (token.thing) {
      case saved:
        (plan_.units[token.of].offloaded ? on_host_ : kept_) += sign * plan_.units[token.of].saved_bytes;
        host_peak_ = std::max(host_peak_, on_host_);
        return;
      case deferred:
        kept_ += sign * plan_.units[token.of].trace->deferred_bytes(plan_.units[token.of].policy);
        return;
      case receive: {  // token.of: 2 · the stage that sends, + 1 for a gradient
        const bool backward = token.of % 2 == 1;
        const int sender = static_cast<int>(token.of / 2);
        return keep(sign, plan_.message_of(backward ? sender - 1 : sender + 1, /*of_input=*/!backward));
      }
      case output:
      case input_gradient:
        return keep(sign, plan_.message_of(static_cast<int>(token.of), token.thing == input_gradient));
      case input:  // within a stage, units count their input and output themselves
        if (plan_.units[token.of].is_stages_first) keep(sign, plan_.units[token.of].takes);
        return;
      case output_gradient:
        if (is_stages_last(token.of)) keep(sign, plan_.units[token.of].hands_on);
        return;
      case gather:
        return pad(sign * gather_padding(plan_.groups[token.of]));
      case collected:
      case transformed: {
        const MatrixBytes bytes = matrix_bytes(plan_, plan_.groups[token.of]);
        matrices_ += sign * (bytes.owned + (token.thing == collected ? bytes.collected : bytes.shards));
        // Parts of updates stay until the optimizer's step.
        if (token.thing == transformed && !held) matrices_ += bytes.parts, updates_ += bytes.parts;
        matrix_peak_ = std::max(matrix_peak_, matrices_);
        return;
      }
      case scatter:
        return pad(sign * scatter_padding(plan_.groups[token.of]));
      default:
        return;
    }
  }

  void works(const Action& action, Work work) override {
    if (work == Work::matrices) update_matrices({&plan_.groups[static_cast<size_t>(action.group)]});
    if (work == Work::optimizer) {
      std::vector<const WeightGroupPlan*> without_exchange;
      for (const WeightGroupPlan& group : plan_.groups) {
        if (group.matrices.empty()) without_exchange.push_back(&group);
      }
      update_matrices(without_exchange);
      matrices_ -= std::exchange(updates_, 0);
    }
    if (action.unit < 0) return;
    const UnitPlan& unit = plan_.units[static_cast<size_t>(action.unit)];
    // What backward reads is in kept_, unless it was fetched from the host.
    const int64_t working =
        work == Work::forward ? unit.forward_peak : unit.backward_peak - (unit.offloaded ? 0 : unit.saved_bytes);
    const Peak now{kept_, working, &action};
    if (now.bytes() > peak_.bytes()) peak_ = now;
  }

 private:
  void keep(int64_t sign, const std::vector<HiddenTensor>& tensors) { kept_ += sign * plan_.message_bytes(tensors); }
  /// What computing the updates of these groups' matrices holds.
  void update_matrices(const std::vector<const WeightGroupPlan*>& groups) {
    int64_t owned = 0, working = 0;
    std::vector<MatrixShape> updated;
    const UpdateDescription* used = nullptr;  // all whole matrices of a run have the same
    for (const WeightGroupPlan* group : groups) {
      const MatrixBytes bytes = matrix_bytes(plan_, *group);
      for (const ParameterPlan& parameter : group->parameters) {
        const UpdateDescription& update = plan_.request.updates[parameter.update];
        if (!update.whole_matrices) continue;
        used = &update;
        working = std::max(working, update.working_matrices * bytes.largest);
      }
      owned += bytes.owned;
      updated.insert(updated.end(), bytes.updated.begin(), bytes.updated.end());
    }
    if (used && !plan_.request.on_gpu && used->bytes_on_cpu) {
      const int64_t threads = std::max<int64_t>(1, plan_.request.training.threads);
      working = std::max(working, used->bytes_on_cpu(updated, threads, owned > 0));
    }
    matrix_peak_ = std::max(matrix_peak_, matrices_ + owned + working);
  }
  bool is_stages_last(size_t unit) const {
    return std::any_of(plan_.stages.begin(), plan_.stages.end(),
                       [&](const StagePlan& stage) { return stage.last == unit + 1; });
  }
  void pad(int64_t bytes) {
    padding_ += bytes;
    padding_peak_ = std::max(padding_peak_, padding_);
  }

  const Plan& plan_;
  int64_t kept_ = 0, on_host_ = 0, host_peak_ = 0, padding_ = 0, padding_peak_ = 0;
  int64_t matrices_ = 0, matrix_peak_ = 0, updates_ = 0;  // updates_: of matrices_, until the step
  Peak peak_;
};

HeldBytes held_during(const Plan& plan, std::span<const RepeatedProgram> step) {
  HeldBytes held(plan);
  RankMachine rank(plan, step.front().program.entry);
  for (const auto& [program, times] : step) {
    rank.begin_program();
    for (const Action& action : program.actions) rank.run(action, &held);
  }
  TITAN_CHECK(held.is_balanced(), plan.request.place.rank);
  return held;
}

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
  std::vector<int64_t> sizes;
  for (const WeightGroupPlan& group : plan.groups) {
    for (const ParameterPlan& parameter : group.parameters) sizes.push_back(plan.moment_bytes(parameter));
  }
  std::sort(sizes.rbegin(), sizes.rend());
  sizes.resize(std::min(sizes.size(), size_t{3}));
  return sum(sizes);
}

void add(std::vector<MemoryPurpose>& table, const char* name, int64_t bytes, bool on_host = false) {
  if (bytes > 0) table.push_back({name, bytes, on_host});
}

/// Memory that is held all the time, and `gradients` (bytes).
std::vector<MemoryPurpose> persistent_memory(const Plan& plan, const HeldBytes& held, int64_t gradients) {
  const PlanRequest& request = plan.request;
  int64_t owned = 0, moments = 0;
  for (const WeightGroupPlan& group : plan.groups) {
    owned += group.shard_numel;
    moments += plan.moment_bytes(group);
  }
  std::vector<MemoryPurpose> table;
  add(table, "parameters", owned * size_of(request.training.dtype), request.training.enable_cpu_offload);
  add(table, "parameters, compute copy", copy_bytes(plan), request.training.enable_cpu_offload);
  add(table, "gathered weights", sum(plan.weight_slots));
  add(table, "gradients before reduction", sum(plan.gradient_slots));
  add(table, "gradients, narrowed", sum(plan.message_slots));
  add(table, "gradients", gradients, request.training.enable_cpu_offload);
  add(table, "optimizer state", moments, request.training.enable_cpu_offload || request.offloads_optimizer());
  add(table, "padding of uneven shards", held.padding_peak());
  add(table, "peer memory, hidden states", plan.peer_bytes());
  return table;
}

/// Memory that forward and backward of a step's microbatches add.
std::vector<MemoryPurpose> microbatch_memory(const Plan& plan, const HeldBytes& held) {
  std::vector<MemoryPurpose> table;
  add(table, "activations kept", held.peak().kept);
  add(table, "activations on the host", held.host_peak(), /*on_host=*/true);
  add(table, "activations being copied", offloaded_activations(plan));
  add(table, "the unit that runs", held.peak().working);
  return table;
}

void append(std::vector<MemoryPurpose>& table, const std::vector<MemoryPurpose>& more) {
  table.insert(table.end(), more.begin(), more.end());
}

}  // namespace

PlanRequest validation_request(const PlanRequest& training) {
  PlanRequest request = training;
  request.samples = training.validation.local_batch_size;
  request.sequence_length = training.validation.seq_len;
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
  constexpr int64_t kTokenAndLabel = 16;  // two int64
  return most + kTokenAndLabel * request.tokens();
}

void add_offload_traffic(Plan& plan) {
  for (const UnitPlan& unit : plan.units) {
    if (unit.offloaded) plan.activation_offload_bytes += plan.request.accumulation * unit.saved_bytes;
  }
  if (!plan.request.offloads_optimizer()) return;
  for (const WeightGroupPlan& group : plan.groups) plan.optimizer_offload_bytes += plan.moment_bytes(group);
}

void add_memory(Plan& plan, const ModelDescription& model, std::span<const RepeatedProgram> step) {
  const HeldBytes held = held_during(plan, step);
  if (held.peak().at) plan.peak = to_line(plan, *held.peak().at);
  const int64_t kept = kept_gradients(plan);
  const std::vector<MemoryPurpose> microbatch = microbatch_memory(plan, held);
  plan.memory = persistent_memory(plan, held, kept + largest_passing_gradient(plan));
  if (plan.request.offloads_optimizer()) add(plan.memory, "optimizer state on the device", offloaded_moments(plan));
  add(plan.memory, "matrices being updated", held.matrix_peak());
  append(plan.memory, microbatch);
  if (!plan.request.validation.enable) return;
  plan.validation_memory = persistent_memory(plan, held, kept);
  // Graphs keep the memory of their microbatch; validation runs without graphs.
  if (plan.request.cuda_graphs && !why_no_graphs(plan.request)) append(plan.validation_memory, microbatch);
  add(plan.validation_memory, "validation's forward", validation_forward_bytes(plan, model));
}

}  // namespace titan
