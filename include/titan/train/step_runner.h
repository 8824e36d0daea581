// One optimizer step: has the executor run the step's programs, and does what they say of norm, clipping and optimizer.
// It reads no data, shows nothing and waits for nothing but gradients that are stepped on the host: the trainer brings
// the microbatches and looks at the outcome when it likes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "titan/kernels/exact_sum.h"
#include "titan/optimize/optimizer.h"
#include "titan/optimize/spike_guard.h"
#include "titan/parallel/executor.h"
#include "titan/train/debug_dump.h"

namespace titan {

/// Over which ranks the step's scalars add up; null where this process is alone.
struct StepCommunicators {
  std::shared_ptr<Communicator> loss;   // ranks that read different tokens
  std::shared_ptr<Communicator> model;  // ranks that together hold every gradient once
};

/// What a rank asks all ranks to do after a step: they learn of it with the step's sums.
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
  at::Tensor loss;
  StepControl control;
  at::Tensor requests;  // fp64 [2], stop and save: 1 if any rank asks, else 0
  at::Tensor own_loss;  // fp64: what this rank's tokens brought to the loss; not the same on all ranks
  at::Tensor spike;     // fp64 [3] as SpikeGuard::judge gives it; undefined without a guard
};

class StepRunner : private StepWork {
 public:
  /// What ranks exchange once a step: the exact sum of squares, or the loss, and their requests.
  static constexpr int64_t kNormMessageBytes = (kExactSlots + 2) * sizeof(int64_t);
  static constexpr int64_t kLossMessageBytes = 3 * sizeof(double);

  /// `group_parameters` by weight group of the plan. Executor and optimizer outlive this. `max_norm` 0, or a plan that
  /// steps in backward: no clipping.
  StepRunner(Executor& executor, Optimizer& optimizer, std::vector<std::vector<Parameter*>> group_parameters,
             double max_norm, StepCommunicators communicators = {});
  /// From now on every step is judged, and left out when the guard skips; null: no longer. It outlives this. A step in
  /// backward has been made when its norm is known: there a guard that skips is refused.
  void guard_with(SpikeGuard* guard);
  /// From now on `act` is called in every step, before anything of it that changes weights or moments is enqueued.
  void before_change(std::function<void()> act) { before_change_ = std::move(act); }
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;

  /// Runs step `step` (1-based). `rate`: the scheduled rate, before the multipliers of parameter groups. The
  /// microbatches' loss_scale makes the loss a mean over the valid tokens of all of them; with a pipeline each is cut
  /// into the pipeline's own. Loss or gradients that are not finite leave the weights as they are; stepping in
  /// backward, those of the groups concerned. `requests` travel with the step's sums, so that all ranks learn of them
  /// after the same step. `dump`, when given, gets loss, norm and gradients; `observer` sees every instruction before
  /// it runs.
  StepOutcome run(std::span<const BatchContext> microbatches, int64_t step, double rate, Requests requests = {},
                  DebugDump* dump = nullptr, const Executor::Observer& observer = {});

 private:
  /// What the step under way has come to.
  struct Progress {
    int64_t step = 0;
    double rate = 0;
    DebugDump* dump = nullptr;
    at::Tensor loss, requests, any_skipped, own_loss, spike;
    at::Tensor squares;        // of all groups so far
    at::Tensor group_squares;  // of the group that is stepped now, in backward
    StepControl control;       // of the whole step
    StepControl applied;       // what the optimizer reads, where it runs
  };

  // The instructions of a step, as StepWork says.
  void sum_loss(const at::Tensor& loss) override;
  void add_squares(int group) override;
  void sum_norm(int group) override;
  void control(int group) override;
  void before_change() override { before_change_(); }
  std::vector<at::Tensor*> applied_scalars() override { return {&progress_.applied.clip, &progress_.applied.skip}; }
  void step(int group) override;

  bool steps_in_backward() const { return executor_.plan().request.step_in_backward; }
  /// Clip factor and skip flag of the whole step, once its norm is known.
  void control_step();
  std::vector<BatchContext> microbatches_of(const BatchContext& batch) const;

  Executor& executor_;
  Optimizer& optimizer_;
  std::vector<std::vector<Parameter*>> group_parameters_;
  std::vector<std::vector<Parameter*>> counted_;  // by group: what this rank counts in the norm
  double max_norm_;
  StepCommunicators communicators_;
  SpikeGuard* guard_ = nullptr;
  std::function<void()> before_change_ = [] {};
  at::Device device_{at::kCPU};
  Progress progress_;
};

}  // namespace titan
