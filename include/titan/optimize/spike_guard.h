// Detects loss and gradient-norm spikes relative to the preceding steps and can skip such a step. Runs on the device
// before the optimizer, without a host sync. Losses and norms have the same bits on all ranks, so all ranks decide
// alike. Owned by the trainer; checkpoints contain its state, so that a resumed run decides like an uninterrupted one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace titan {

/// The state to save: the window as in memory; NaN for slots without a value, or of non-finite steps.
struct SpikeGuardState {
  int64_t steps = 0;  // steps judged in total
  std::vector<double> losses, norms;
};

class SpikeGuard {
 public:
  /// `window`: number of preceding steps to compare with, at least 2; `threshold`: standard deviations above the mean.
  /// `skips`: the step of a spike is skipped; otherwise it is only reported.
  SpikeGuard(int64_t window, double threshold, bool skips, const at::Device& device);

  /// `loss` and `norm` of a step: fp64 device scalars. Returns fp64 [3]: is-spike, then z of loss and of norm, z = (x −
  /// μ) / σ with σ² = mean of (x − μ)² over the finite values in the window. Reports no spike until half of the window
  /// has values; training.non_finite handles non-finite values. A spike enters the window as μ + threshold·σ (at least
  /// 3σ), skipped or not: the next spike is still detected, and a permanent change of level stops being one.
  at::Tensor judge(const at::Tensor& loss, const at::Tensor& norm);
  bool skips() const { return skips_; }

  /// Synchronises with the device.
  SpikeGuardState state() const;
  /// Returns false, without a change, if `state` has another window size.
  bool restore(const SpikeGuardState& state);

 private:
  int64_t window_;
  double threshold_;
  bool skips_;
  at::Tensor values_;  // fp64 [2, window]: losses and norms; step s is in column s mod window
  int64_t steps_ = 0;
};

}  // namespace titan
