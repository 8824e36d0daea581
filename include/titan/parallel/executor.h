// The executor: walks the chain of units, forward and backward, microbatch by microbatch, and calls Residency at the
// places the plan names. This file says when anything happens; there is no other hook. A pipeline stage is a sub-chain,
// a schedule a list of calls to forward and backward.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "titan/model/unit.h"
#include "titan/parallel/plan.h"
#include "titan/parallel/residency.h"

namespace titan {

/// What stays of one unit and one microbatch from its forward to its backward: the leaves its graph ends in, the
/// gradient edges of its outputs (not the outputs), and the context its operations point to.
struct UnitState {
  Stream leaves;
  std::vector<torch::autograd::Edge> edges;
  std::unique_ptr<UnitContext> context;
};

/// Runs one unit's forward or backward. Eager now; a runner that replays captured CUDA graphs goes here.
class UnitRunner {
 public:
  virtual ~UnitRunner() = default;
  virtual Stream forward(Unit& unit, const Stream& input, const BatchContext& batch, UnitState& state) = 0;
  /// Gradients of the outputs → gradients of the inputs. Consumes the state.
  virtual Stream backward(Unit& unit, const Stream& output_gradients, const BatchContext& batch, UnitState& state) = 0;
};

class EagerRunner : public UnitRunner {
 public:
  Stream forward(Unit& unit, const Stream& input, const BatchContext& batch, UnitState& state) override;
  Stream backward(Unit& unit, const Stream& output_gradients, const BatchContext& batch, UnitState& state) override;
};

/// Debugging aids of the executor; off in normal runs.
struct ExecutorOptions {
  bool count_saved_bytes = false;
  bool check_kept_tensors = false;  // hashes of kept tensors are compared at replay
};

class Executor {
 public:
  /// `chain` and `residencies` lie in the plan's order (one residency per weight group).
  Executor(const Plan& plan, std::span<const std::shared_ptr<Unit>> chain,
           std::vector<std::unique_ptr<Residency>> residencies, std::unique_ptr<UnitRunner> runner,
           ExecutorOptions options = {});

  /// Training forward of one microbatch: its loss, already scaled (fp64 scalar). State is kept until its backward.
  at::Tensor forward(const BatchContext& batch, int64_t microbatch);
  /// Backward of a microbatch whose forward ran. `is_last`: the step's last, gradients are reduced and become shards.
  void backward(const BatchContext& batch, int64_t microbatch, bool is_last);
  /// Forward that keeps nothing: the loss (UnitMode::evaluate) or logits (UnitMode::logits).
  at::Tensor infer(const BatchContext& batch, UnitMode mode);

  /// Called for each group right after its last reduction of a step (an optimizer that steps in backward).
  void on_group_reduced(std::function<void(size_t group)> callback) { group_reduced_ = std::move(callback); }
  /// Runs the queued weight-gradient products of the microbatches so far (a pipeline's W action), then reduces.
  void run_weight_gradients(bool is_last);
  /// With `deferred`, weight gradients and reductions wait for run_weight_gradients.
  void defer_weight_gradients(bool deferred) { deferred_ = deferred; }

  void finish_step();
  /// One group alone, when its optimizer step is done before the others' (stepping in backward).
  void finish_group(size_t group) { residencies_[group]->finish_step(); }
  void weights_changed();
  /// Bytes that unit `unit` holds for `microbatch` now; needs ExecutorOptions::count_saved_bytes.
  int64_t saved_bytes(size_t unit, int64_t microbatch) const;
  const Plan& plan() const { return plan_; }

 private:
  void acquire(size_t unit, UsePhase phase, int64_t microbatch);
  void release(size_t unit, UsePhase phase, int64_t microbatch);
  void prefetch(size_t unit, UsePhase phase, int64_t microbatch);
  void gradient_storage(size_t unit);
  /// Units may compute in different dtypes (training.keep_fp32): what enters one is in its own.
  Stream as_computed_in(size_t unit, Stream stream) const;
  void reduce(size_t group, bool is_last);
  /// Ends the reduction under way.
  void settle();
  std::vector<UnitState>& states_of(int64_t microbatch);

  Plan plan_;
  std::vector<std::shared_ptr<Unit>> chain_;
  std::vector<std::unique_ptr<Residency>> residencies_;
  std::unique_ptr<UnitRunner> runner_;
  ExecutorOptions options_;
  std::function<void(size_t)> group_reduced_;
  ImmediateSink immediate_;
  QueueSink queue_;
  bool deferred_ = false;
  std::optional<size_t> reducing_;              // the group whose reduction is under way
  std::vector<std::vector<UnitState>> states_;  // [microbatch][unit]
};

}  // namespace titan
