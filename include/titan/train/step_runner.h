// One optimizer step: the executor runs the step's programs; this class implements their norm, clipping and optimizer
// instructions. It reads no data, prints nothing and waits only for gradients of an optimizer on the host. The trainer
// supplies the microbatches and reads the outcome later.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "titan/kernels/exact_sum.h"
#include "titan/optimize/optimizer.h"
#include "titan/optimize/spike_guard.h"
#include "titan/parallel/executor.h"
#include "titan/parallel/matrix_exchange.h"
#include "titan/train/debug_dump.h"

namespace titan {

/// The ranks over which a step's scalars are summed; null for a single process.
struct StepCommunicators {
  std::shared_ptr<Communicator> loss;   // ranks that read different tokens
  std::shared_ptr<Communicator> model;  // ranks that together hold every gradient once
  std::map<std::string, std::shared_ptr<Communicator>, std::less<>> of_weights = {};  // of whole matrices, by name
  std::shared_ptr<Communicator> tensor = nullptr;  // ranks that share the tokens of a microbatch
};

/// Requests of a rank to all ranks after a step, sent with the step's sums.
struct Requests {
  bool stop = false;
  bool save = false;

  Requests& operator|=(const Requests& other) {
    stop |= other.stop;
    save |= other.save;
    return *this;
  }
  bool operator==(const Requests&) const = default;
};

/// Device scalars of a step whose work is enqueued, the same on all ranks. The loss (fp64) is that of the weights
/// before the step.
struct StepOutcome {
  at::Tensor loss;  // scalar
  StepControl control;
  at::Tensor requests;         // fp64 [2], stop and save: 1 if any rank asks, else 0
  at::Tensor own_loss;         // fp64 scalar: contribution of this rank's tokens to the loss; differs between ranks
  at::Tensor spike;            // fp64 [3], see SpikeGuard::judge; undefined without a guard
  at::Tensor statistics = {};  // fp64 [numel of all]: those of Plan::statistics one after the other, of all ranks
};

class StepRunner : private StepWork {
 public:
  static_assert(kNormMessageBytes == (kExactSlots + 2) * sizeof(int64_t));

  /// `group_parameters`: by weight group of the plan. Executor and optimizer must outlive this. No clipping if
  /// `max_norm` is 0 or the plan steps in backward.
  StepRunner(Executor& executor, Optimizer& optimizer, std::vector<std::vector<Parameter*>> group_parameters,
             double max_norm, StepCommunicators communicators = {});
  /// From now on the guard judges every step, and a step that it rejects is skipped; null: off. The guard must outlive
  /// this. Refuses a guard that skips if the optimizer steps in backward: such a step is done before its norm is known.
  void guard_with(SpikeGuard* guard);
  /// From now on calls `act` in every step, before any change to weights or moments is enqueued.
  void before_change(std::function<void()> act) { before_change_ = std::move(act); }
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;

  /// Runs step `step` of the run (1-based). `rate`: the scheduled rate, before the multipliers of parameter groups. The
  /// microbatches' loss_scale makes the loss a mean over the valid tokens of all of them; a pipeline splits each into
  /// its own microbatches. If loss or gradients are not finite, the weights do not change; with the optimizer in
  /// backward, those of the affected groups do not. `requests` are sent with the step's sums, so that all ranks receive
  /// them after the same step. `dump`, if given, gets loss, norm and gradients; `observer` is called before every
  /// instruction.
  StepOutcome run(std::span<const BatchContext> microbatches, int64_t step, double rate, Requests requests = {},
                  DebugDump* dump = nullptr, const Executor::Observer& observer = {});
  /// Runs forward and backward of a microbatch between two steps, with all communication between ranks, and drops the
  /// gradients: no weight and no moment changes. Returns the loss of this rank's tokens (fp64), undefined without a
  /// head.
  at::Tensor replay(const BatchContext& microbatch, const Executor::Observer& observer = {});

 private:
  /// Of the step that runs.
  struct CurrentStep {
    int64_t step = 0;
    double rate = 0;
    DebugDump* dump = nullptr;
    at::Tensor loss, requests, own_loss, spike, statistics;  // of the shapes in StepOutcome
    at::Tensor any_skipped;                                  // fp32 scalar
    at::Tensor squares;                                      // int64 [kExactSlots], of all groups so far
    at::Tensor group_squares;                                // int64 [kExactSlots], of the current group, in backward
    StepControl control;                                     // of the whole step
    StepControl applied;                                     // read by the optimizer, on its device
  };

  // The instructions of a step (StepWork).
  void sum_loss(const at::Tensor& loss) override;
  void add_squares(int group) override;
  void sum_norm(int group) override;
  void control(int group) override;
  void before_change() override { before_change_(); }
  std::vector<at::Tensor*> applied_scalars() override { return {&current_.applied.clip, &current_.applied.skip}; }
  void collect(int group) override;
  void transform(int group) override;
  void wait_transform(int group) override;
  void step(int group) override;

  bool steps_in_backward() const { return executor_.plan().request.optimizer.early_step_in_backward; }
  /// This rank's sums of the statistics in this step.
  at::Tensor all_statistics();
  /// Computes clip factor and skip flag of the whole step, once its norm is known.
  void control_step();
  std::vector<BatchContext> microbatches_of(const BatchContext& batch) const;

  Executor& executor_;
  Optimizer& optimizer_;
  std::vector<std::vector<Parameter*>> group_parameters_;
  std::vector<std::vector<Parameter*>> counted_;  // by group: what this rank counts in the norm
  double max_norm_;
  StepCommunicators communicators_;
  std::map<int, MatrixExchange> matrices_;  // by weight group
  SpikeGuard* guard_ = nullptr;
  std::function<void()> before_change_ = [] {};
  at::Device device_{at::kCPU};
  CurrentStep current_;
};

}  // namespace titan
