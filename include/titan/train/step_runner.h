// One optimizer step: the microbatches forward and backward, then the norm, the clipping and the optimizer; or the
// optimizer inside the backward, group by group. It reads no data, shows nothing and waits for nothing but gradients
// that are stepped on the host: the trainer brings the microbatches and looks at the outcome when it likes.
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
#include "titan/parallel/pipeline_runner.h"
#include "titan/train/debug_dump.h"

namespace titan {

struct StepOptions {
  double max_norm = 0;            // 0: no clipping
  bool step_in_backward = false;  // a group is stepped right after its reduction; nothing is clipped then
};

/// Over which ranks the step's scalars add up; null where this process is alone.
struct StepCommunicators {
  std::shared_ptr<Communicator> loss;   // ranks that read different tokens
  std::shared_ptr<Communicator> model;  // ranks that together hold every gradient once
  // Those that find the scales of float8 weights in advance: ranks that hold shards of a weight, ranks that share it.
  std::shared_ptr<Communicator> gather = nullptr;
  std::shared_ptr<Communicator> tensor = nullptr;
};

/// What a rank wants all ranks to do after a step: they learn of it with the step's sums.
struct Wishes {
  bool stop = false;
  bool save = false;

  bool operator==(const Wishes&) const = default;
};

/// Device scalars of a step whose work is enqueued, the same on all ranks. The loss (fp64) is that of the weights
/// before the step.
struct StepOutcome {
  at::Tensor loss;
  StepControl control;
  at::Tensor wishes;    // fp64 [2], stop and save: 1 where any rank has that wish, 0 where none has
  at::Tensor own_loss;  // fp64: what this rank's tokens brought to the loss; not the same on all ranks
  at::Tensor spike;     // fp64 [3] as SpikeGuard::judge gives it; undefined without a guard
};

class StepRunner {
 public:
  /// What ranks exchange once a step: the exact sum of squares, or the loss, and their wishes.
  static constexpr int64_t kNormMessageBytes = (kExactSlots + 2) * sizeof(int64_t);
  static constexpr int64_t kLossMessageBytes = 3 * sizeof(double);

  /// `group_parameters` by weight group of the plan. Executor, optimizer and `pipeline` outlive this; with a pipeline
  /// every microbatch goes through it, cut into the pipeline's own.
  StepRunner(Executor& executor, Optimizer& optimizer, std::vector<std::vector<Parameter*>> group_parameters,
             const StepOptions& options, StepCommunicators communicators = {}, PipelineRunner* pipeline = nullptr);
  /// From now on every step is judged, and left out when the guard skips; null: no longer. It outlives this. A step in
  /// backward has been made when its norm is known: there a guard that skips is refused.
  void guard_with(SpikeGuard* guard);
  /// From now on `act` is called in every step, before anything of it that changes weights or moments is enqueued.
  void before_change(std::function<void()> act) { before_change_ = std::move(act); }
  StepRunner(const StepRunner&) = delete;
  StepRunner& operator=(const StepRunner&) = delete;

  /// Runs step `step` (1-based) at peak rate `rate`. The microbatches' loss_scale makes the loss a mean over the valid
  /// tokens of all of them. Loss or gradients that are not finite leave the weights as they are; with step_in_backward,
  /// those of the groups concerned. `wishes` travel with the step's sums, so that all ranks learn of them after the
  /// same step. `dump`, when given, gets loss, norm and gradients.
  StepOutcome run(std::span<const BatchContext> microbatches, int64_t step, double rate, Wishes wishes = {},
                  DebugDump* dump = nullptr);

 private:
  /// What the step under way has come to, where a part of it is known before the whole backward is over.
  struct Progress {
    int64_t step = 0;
    double rate = 0;
    DebugDump* dump = nullptr;
    at::Tensor loss, wishes, squares, any_skipped, own_loss;
  };

  void step_group(size_t group);
  /// Adds the group's exact sum of squares to the step's: gradients that are stepped on the host leave the device next.
  void add_squares(size_t group);
  /// The same over all ranks that hold parts of the gradients.
  at::Tensor sum_squares(const at::Tensor& squares);
  /// Clip factor and skip flag where the optimizer runs. On the host, gradients have arrived there when this returns.
  StepControl for_optimizer(const StepControl& control);
  /// Forward and backward of all microbatches; leaves the loss of all ranks in progress_.
  void compute_gradients(std::span<const BatchContext> microbatches);
  /// Adds up the loss over the ranks, before the backward that would act on it.
  void sum_loss();

  Executor& executor_;
  Optimizer& optimizer_;
  PipelineRunner* pipeline_;
  std::vector<std::vector<Parameter*>> group_parameters_;
  std::vector<std::vector<Parameter*>> counted_;  // by group: what this rank counts in the norm
  StepOptions options_;
  StepCommunicators communicators_;
  SpikeGuard* guard_ = nullptr;
  std::function<void()> before_change_ = [] {};
  at::Device device_{at::kCPU};
  Progress progress_;
  std::shared_ptr<const void> reduced_;  // while it lives, the executor tells of groups that are reduced
};

}  // namespace titan
