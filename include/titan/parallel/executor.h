// The executor: walks the chain of units, forward and backward, microbatch by microbatch, and calls Residency at the
// places the plan names. This file says when anything happens; there is no other hook. A pipeline stage is a sub-chain,
// a schedule a list of calls to forward and backward.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "titan/model/unit.h"
#include "titan/parallel/activation_offload.h"
#include "titan/parallel/microbatch_graphs.h"
#include "titan/parallel/plan.h"
#include "titan/parallel/residency.h"

namespace titan {

/// What stays of one unit and one microbatch from its forward to its backward: the leaves its graph ends in, the
/// gradient edges of its outputs (not the outputs), and the context its operations point to.
struct UnitState {
  Stream leaves;
  PutAway put_away;  // where the leaves and what the context's recorder keeps have gone
  std::vector<torch::autograd::Edge> edges;
  std::unique_ptr<UnitContext> context;
};

/// Runs one unit's forward or backward: eagerly, or through recorded graphs (graph_runner.h).
class UnitRunner {
 public:
  virtual ~UnitRunner() = default;
  virtual Stream forward(Unit& unit, const Stream& input, const BatchContext& batch, UnitState& state) = 0;
  /// Gradients of the outputs → gradients of the inputs. Consumes the state.
  virtual Stream backward(Unit& unit, const Stream& output_gradients, const BatchContext& batch, UnitState& state) = 0;
  /// The next forward is the first of a step.
  virtual void finish_step() {}
};

class EagerRunner : public UnitRunner {
 public:
  Stream forward(Unit& unit, const Stream& input, const BatchContext& batch, UnitState& state) override;
  Stream backward(Unit& unit, const Stream& output_gradients, const BatchContext& batch, UnitState& state) override;
};

struct ExecutorOptions {
  // Debugging aids; off in normal runs.
  bool count_saved_bytes = false;
  bool check_kept_tensors = false;  // hashes of kept tensors are compared at replay
  // Fused kernels of the units and of the loss; null: plain operations.
  std::shared_ptr<const FusedKernels> kernels = nullptr;
  std::shared_ptr<const FusedKernels> loss_kernels = nullptr;
  // To where units that the plan offloads keep their activations, and to where weights are stepped, if on the host.
  std::shared_ptr<HostLink> activation_link = nullptr;
  std::shared_ptr<HostLink> weight_link = nullptr;
};

class Executor {
 public:
  /// `chain` is the whole model's; `residencies` lie in the plan's order (one per weight group). With `graphs` whole
  /// microbatches may be recorded; `runner` is an eager one then, and weights stay where they are.
  Executor(const Plan& plan, std::span<const std::shared_ptr<Unit>> chain,
           std::vector<std::unique_ptr<Residency>> residencies, std::unique_ptr<UnitRunner> runner,
           ExecutorOptions options = {}, std::unique_ptr<MicrobatchGraphs> graphs = nullptr);

  /// Training forward of one microbatch through the whole chain: its loss, already scaled (fp64 scalar). State is kept
  /// until its backward.
  at::Tensor forward(const BatchContext& batch, int64_t microbatch);
  /// Backward of a microbatch whose forward ran. `is_last`: the step's last, gradients are reduced and become shards.
  void backward(const BatchContext& batch, int64_t microbatch, bool is_last);
  /// Both of a rank that is alone, as one recorded graph: the loss, valid until the next microbatch. Only where
  /// records_microbatches().
  at::Tensor forward_and_backward(const BatchContext& batch, bool is_last);
  bool records_microbatches() const { return graphs_ != nullptr; }
  /// Forward that keeps nothing: the loss (UnitMode::evaluate) or logits (UnitMode::logits).
  at::Tensor infer(const BatchContext& batch, UnitMode mode);

  /// The same by local stages of a pipeline: what enters the stage (nothing for the model's first) → what leaves it
  /// (the last stage's is the loss, or the logits).
  Stream forward_stage(size_t stage, Stream input, const BatchContext& batch, int64_t microbatch);
  Stream infer_stage(size_t stage, Stream input, const BatchContext& batch, UnitMode mode);
  /// Gradients of what left the stage → of what entered it. Nothing is reduced. When weight gradients are deferred they
  /// wait for weight_gradients.
  Stream backward_stage(size_t stage, Stream gradients, const BatchContext& batch, int64_t microbatch);
  /// Runs the weight-gradient products that the backward of this stage and microbatch put off.
  void weight_gradients(size_t stage, int64_t microbatch);
  /// The gradients of the stage are complete: they are reduced and become shards.
  void reduce_stage(size_t stage);
  /// Adds up gradients of weights that two ranks of the pipeline hold; after all reductions of the step, on both.
  void add_twins();
  /// The gradient that a loss begins its backward with.
  static Stream loss_gradient(const BatchContext& batch);

  /// `callback` is called for each group right after its last reduction of a step, for as long as what this returns
  /// lives; several in the order in which they were given. Gradients that are stepped on the host leave the device
  /// after all of them, unless one has sent them.
  [[nodiscard]] std::shared_ptr<const void> on_group_reduced(std::function<void(size_t group)> callback);
  /// Where the optimizer runs on the host, a group's reduced gradients leave for it, unless they have left.
  void send_home(size_t group) { residencies_[group]->send_home(); }
  /// The one wait of such a step: for gradients that have left, and for copies of `numbers`, which it returns.
  /// Elsewhere it does nothing and returns the numbers.
  std::vector<at::Tensor> wait_home(const std::vector<at::Tensor>& numbers);
  /// With `deferred`, weight gradients and reductions wait for weight_gradients and reduce_stage.
  void defer_weight_gradients(bool deferred) { deferred_ = deferred; }

  void finish_step();
  /// One group alone, when its optimizer step is done before the others' (stepping in backward).
  void finish_group(size_t group) { residencies_[group]->finish_step(); }
  void weights_changed();
  /// Memory held now for the gradients that the optimizer reads, of all groups.
  int64_t gradient_bytes() const;
  /// Finds the scales of all weights that travel in float8, in one reduction over the ranks that hold shards of them
  /// and those that share matrices (null: there is one of a kind).
  void scale_weights(Communicator* gather, Communicator* tensor);
  /// Bytes that unit `unit` holds for `microbatch` now; needs ExecutorOptions::count_saved_bytes.
  int64_t saved_bytes(size_t unit, int64_t microbatch) const;
  const Plan& plan() const { return plan_; }
  /// What is under way, or was when something failed: "forward of layers.3"; empty before the first unit ran.
  std::string position() const;
  /// What follows is no more a part of the unit that ran last.
  void forget_position() { last_use_.reset(); }

 private:
  void acquire(size_t unit, UsePhase phase, int64_t microbatch);
  void release(size_t unit, UsePhase phase, int64_t microbatch);
  void prefetch(size_t unit, UsePhase phase, int64_t microbatch);
  void gradient_storage(size_t unit);
  /// Units may compute in different dtypes (training.keep_fp32): what enters one is in its own.
  Stream as_computed_in(size_t unit, Stream stream) const;
  std::unique_ptr<UnitContext> training_context(size_t unit, WeightGradientSink& sink) const;
  void hand_kernels(UnitContext& context) const;
  /// Forward and backward of all units and nothing between them.
  at::Tensor compute(const BatchContext& batch);
  /// What enters the backward of a unit, from what left that of the next.
  Stream gradients_into(size_t unit, Stream gradients) const;
  /// Whether products ask for magnitudes that kernels can find while they write.
  bool wants_magnitudes() const;
  Stream backward_units(size_t stage, Stream gradients, const BatchContext& batch, int64_t microbatch,
                        const std::function<void(size_t unit)>& after_unit);
  void reduce(size_t group, bool is_last);
  /// Goes one leg on with the reductions under way: the newest, and the one before it, which is over then.
  void advance();
  /// Ends all reductions under way.
  void settle();
  void settle(size_t group);
  /// The gradient of a group is complete.
  void reduced(size_t group);
  std::vector<UnitState>& states_of(int64_t microbatch);
  /// Everything a checkpointed unit holds from its forward to its backward.
  static std::vector<at::Tensor*> tensors_of(UnitState& state);

  Plan plan_;
  std::vector<std::shared_ptr<Unit>> chain_;
  std::vector<std::unique_ptr<Residency>> residencies_;
  std::unique_ptr<UnitRunner> runner_;
  std::unique_ptr<MicrobatchGraphs> graphs_;  // null: the executor's own loops run every microbatch
  ExecutorOptions options_;
  ScaleTable scales_;  // of all units
  std::vector<std::weak_ptr<const std::function<void(size_t)>>> group_reduced_;
  ImmediateSink immediate_;
  std::map<std::pair<size_t, int64_t>, QueueSink> deferred_products_;  // by stage and microbatch
  bool deferred_ = false;
  std::optional<Use> last_use_;
  std::unique_ptr<ActivationOffload> offload_;  // null unless the plan offloads a unit
  std::optional<size_t> reducing_;              // the group whose reduction has just begun
  std::optional<size_t> replicating_;           // and the one before it, in its second leg
  std::vector<std::vector<UnitState>> states_;  // [microbatch][unit]
};

}  // namespace titan
