// The executor runs programs (program.h): one switch over their instructions, with or without a pipeline. The program
// decides the order.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "titan/model/model.h"
#include "titan/parallel/compute_clock.h"
#include "titan/parallel/stage_messages.h"
#include "titan/parallel/unit_runner.h"
#include "titan/parallel/weight_store.h"
#include "titan/plan/program.h"

namespace titan {

/// The instructions of a step that concern neither units nor weights. `group` is -1 for all groups together. By default
/// they do nothing: gradients are computed and no step is made.
class StepWork {
 public:
  virtual ~StepWork() = default;
  /// `loss`: the sum of losses of this program so far (fp64 scalar).
  virtual void sum_loss(const at::Tensor& /*loss*/) {}
  virtual void add_squares(int /*group*/) {}
  virtual void sum_norm(int /*group*/) {}
  virtual void control(int /*group*/) {}
  virtual void before_change() {}
  virtual void collect(int /*group*/) {}
  virtual void transform(int /*group*/) {}
  virtual void wait_transform(int /*group*/) {}
  /// Device scalars that the optimizer reads. If it runs on the host, WAIT_HOST replaces them by host copies.
  virtual std::vector<at::Tensor*> applied_scalars() { return {}; }
  virtual void step(int /*group*/) {}
};

struct ExecutorOptions {
  // Debugging aids; off in normal runs.
  bool count_saved_bytes = false;
  bool check_kept_tensors = false;  // compares hashes of kept tensors at replay
  // Fused kernels of the units and of the loss; null: plain operations.
  std::shared_ptr<const FusedKernels> kernels = nullptr;
  std::shared_ptr<const FusedKernels> loss_kernels = nullptr;
  // Where units offload activations if the plan says so, and where weights are stepped if on the host.
  std::shared_ptr<HostOffload> activation_offload = nullptr;
  std::shared_ptr<HostOffload> weight_offload = nullptr;
  std::shared_ptr<Communicator> pipeline = nullptr;  // the ranks of the axis pp
  // Where units compute, and what their collectives take.
  c10::Device device = at::kCPU;
  std::shared_ptr<const CollectiveTime> collectives = nullptr;
};

class Executor {
 public:
  /// `chain`: the whole model's; `weights`: one store per weight group, in the plan's order. With `graphs` whole
  /// microbatches may be recorded; then `runner` must be eager, and weights stay at their addresses.
  Executor(const Plan& plan, std::span<const std::shared_ptr<Unit>> chain, WeightStores weights,
           std::unique_ptr<UnitRunner> runner, ExecutorOptions options = {},
           std::unique_ptr<MicrobatchGraphs> graphs = nullptr);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// The program of this kind that starts from the current state; built once per state.
  const Program& program(ProgramKind kind);
  /// Called before each instruction of a run; must not change anything.
  using Observer = std::function<void(const Action&)>;
  /// Runs a program that starts from the current state. `microbatches` are those of a pass. → the sum of the losses
  /// that this rank computed (fp64), undefined if none.
  at::Tensor run(const Program& program, std::span<const BatchContext> microbatches, StepWork& work,
                 const Observer& observer = {});
  /// From now on the inspector is called with what each forward hands on and with the input gradients of each backward
  /// (any shape), if they are defined and not computed in a recorded microbatch. An empty one ends that.
  using Inspector = std::function<void(const Action&, std::span<const at::Tensor>)>;
  void inspect_with(Inspector inspector) { inspector_ = std::move(inspector); }
  /// Runs the evaluation program. UnitMode::evaluate: the loss, 0 on ranks without the model's last stage.
  /// UnitMode::logits: the logits, undefined on those ranks.
  at::Tensor infer(const BatchContext& batch, UnitMode mode);

  /// The sums of the statistics of all forwards since the last call, fp64 [Plan::statistics_numel()], of this rank;
  /// undefined if the model has none.
  at::Tensor take_statistics() { return std::exchange(statistics_, at::Tensor()); }

  /// Call after masters were written from outside (initialisation, load): their copies and scales are stale.
  void weights_changed();
  /// Drops the gradients as the optimizer's ZERO_GRADIENT does; the next pass begins a step.
  void zero_gradient();
  /// Bytes held now for the gradients that the optimizer reads, over all groups.
  int64_t gradient_bytes() const;
  /// Bytes that unit `unit` holds for `microbatch` now; needs ExecutorOptions::count_saved_bytes.
  int64_t saved_bytes(size_t unit, int64_t microbatch) const;
  /// The largest number of (stage, microbatch) pairs whose activations were kept at once, so far.
  int64_t most_live() const { return most_live_; }
  const Plan& plan() const { return plan_; }
  /// Weights and gradients that are present now: where the next program starts.
  const WeightState& state() const { return state_; }
  /// The current or failed instruction: "forward of layers.3"; empty before the first unit.
  std::string position() const;
  /// Later work is not part of the last unit that ran.
  void forget_position() { position_.reset(); }
  /// Seconds that units have computed in training since the last call, without waits for other ranks (ComputeClock).
  double take_compute_seconds() { return clock_.take(); }
  /// WeightStore::changed_copies of all groups.
  std::vector<const Parameter*> changed_copies() const;

 private:
  /// Arguments shared by the instructions of one call of `run`.
  struct Call {
    std::span<const BatchContext> microbatches;
    StepWork& work;
    UnitMode mode = UnitMode::train;
  };
  at::Tensor run(const Program& program, const Call& call, const Observer& observer);
  void execute(const Action& action, const Call& call);

  void run_forward(const Action& action, const BatchContext& batch);
  void run_backward(const Action& action, const BatchContext& batch);
  void run_evaluate(const Action& action, const BatchContext& batch, UnitMode mode);
  void run_weight_gradients(const Action& action);
  void run_graph(const Action& action, const Call& call);
  void wait_for_host(StepWork& work);
  void drop_gradients(int group);
  /// Checks what a forward returned against the unit's plan, and removes the statistics, which it adds up if
  /// `counted`.
  void check_and_count(const UnitPlan& unit, const BatchContext& batch, bool counted, HiddenStates& output);
  /// Appends the gradients of the unit's statistics: their loss factors. Undefined without a factor.
  void append_factors(const UnitPlan& unit, HiddenStates& gradients, const BatchContext& batch);
  /// Whatever an earlier try to record this microbatch has left.
  void forget_microbatch();

  const UnitPlan& plan_of(const Action& action) const { return plan_.units[static_cast<size_t>(action.unit)]; }
  UnitState& state_of(const Action& action);
  std::unique_ptr<UnitContext> context_for(const Action& action, UnitMode mode);
  /// The weight stores of one group, or of all groups (-1).
  std::vector<WeightStore*> stores_of(int group) const;
  /// The same, of the groups that the optimizer steps.
  std::vector<WeightStore*> trained_stores(int group) const;

  Plan plan_;
  std::vector<std::shared_ptr<Unit>> chain_;
  WeightStores weights_;
  std::unique_ptr<UnitRunner> runner_;
  std::unique_ptr<MicrobatchGraphs> graphs_;  // null: units run one by one
  ExecutorOptions options_;
  std::deque<Program> programs_;
  WeightState state_;
  ScaleTable scales_;  // of all units
  ImmediateSink immediate_;
  std::map<std::pair<int, int>, QueueSink> deferred_products_;  // by stage and microbatch
  std::unique_ptr<ActivationOffload> offload_;                  // null unless the plan offloads a unit
  std::vector<std::vector<UnitState>> states_;                  // [microbatch][unit]
  StageMessages messages_;
  at::Tensor result_;                     // of this run: the sum of the losses (scalar), or logits [rows, V]
  at::Tensor statistics_;                 // [numel of all]: sums since take_statistics; undefined: none yet
  std::map<size_t, at::Tensor> factors_;  // [numel]: gradients of statistics, by index in Plan::statistics
  std::optional<Action> position_;
  int64_t live_ = 0;
  int64_t most_live_ = 0;
  Inspector inspector_;  // empty: off
  ComputeClock clock_;
};

}  // namespace titan
