// Watches loss and gradient norm for values far above those of the steps before, and can have such a step left out.
// All of it happens on the device, before the optimizer runs and without the host waiting; the ranks' losses and norms
// have the same bits, so all decide alike. Owned by the trainer; its state belongs into checkpoints, so that a run that
// goes on decides as the unbroken one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace titan {

struct SpikeGuardOptions {
  int64_t window = 128;  // steps that a step is compared with, at least 2
  double threshold = 6;  // standard deviations above their mean
  bool skips = false;    // leave a spike's step out; else it is only told
};

/// What must be remembered: the window as it stands in memory, NaN where there is no value yet or where a step was not
/// finite.
struct SpikeGuardState {
  int64_t steps = 0;  // judged so far
  std::vector<double> losses, norms;
};

class SpikeGuard {
 public:
  SpikeGuard(const SpikeGuardOptions& options, const at::Device& device);

  /// `loss` and `norm` of a step, fp64 scalars on the device. Gives fp64 [3]: whether it is a spike, then by how many
  /// standard deviations loss and norm are above the mean of the finite values in the window, z = (x − μ) / σ with
  /// σ² = mean of (x − μ)². Nothing is a spike before half of the window holds values, and what is not finite is none:
  /// that is training.non_finite's business. A spike enters the window as μ + threshold·σ (at least 3σ), whatever comes
  /// of it: the next one is seen, and a lasting change of level ends being one.
  at::Tensor judge(const at::Tensor& loss, const at::Tensor& norm);
  bool skips() const { return options_.skips; }

  /// Waits for the device.
  SpikeGuardState state() const;
  /// False, and nothing changes, when `state` is of another window.
  bool restore(const SpikeGuardState& state);

 private:
  SpikeGuardOptions options_;
  at::Tensor values_;  // fp64 [2, window]: losses and norms; step s is in column s mod window
  int64_t steps_ = 0;
};

}  // namespace titan
