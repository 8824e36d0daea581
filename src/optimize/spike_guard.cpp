#include "titan/optimize/spike_guard.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "titan/base/error.h"
#include "titan/ops/tensor_checks.h"

namespace titan {
namespace {

/// Lower bound of σ relative to the mean, so that rounding noise on constant values is not a spike.
constexpr double kLeastDeviation = 1e-6;

/// A spike enters the window with at least this many standard deviations above the mean. With a bound below √3 a window
/// of spikes would narrow, and a permanent change of level would remain a spike for ever.
constexpr double kLeastReach = 3;

}  // namespace

SpikeGuard::SpikeGuard(int64_t window, double threshold, bool skips, const at::Device& device)
    : window_(window),
      threshold_(threshold),
      skips_(skips),
      values_(at::full({2, window}, std::numeric_limits<double>::quiet_NaN(),
                       at::TensorOptions(device).dtype(at::kDouble))) {
  TITAN_CHECK(window >= 2 && threshold > 0, window, threshold);
}

at::Tensor SpikeGuard::judge(const at::Tensor& loss, const at::Tensor& norm) {
  TITAN_CHECK(is_number(loss, at::kDouble) && same_form(loss, norm) && loss.device() == values_.device(),
              summary_of(loss), summary_of(norm), values_.device().str());
  const at::Tensor fresh = at::stack({loss, norm});
  const at::Tensor finite = at::isfinite(values_);
  const at::Tensor count = finite.sum(1).to(at::kDouble);
  const at::Tensor mean = at::where(finite, values_, 0.0).sum(1) / count;
  const at::Tensor variance = at::where(finite, (values_ - mean.unsqueeze(1)).square(), 0.0).sum(1) / count;
  const at::Tensor deviation = at::maximum(variance.sqrt(), mean.abs() * kLeastDeviation);
  const at::Tensor z = (fresh - mean) / deviation;
  const at::Tensor enough = count * 2 >= static_cast<double>(window_);
  const at::Tensor spike = (z > threshold_).logical_and_(enough).logical_and_(at::isfinite(fresh));
  const at::Tensor highest = mean + std::max(threshold_, kLeastReach) * deviation;
  // A window of zeros has no deviation to compare with.
  const at::Tensor kept = at::where(spike.logical_and(deviation > 0), at::minimum(fresh, highest), fresh);
  values_.select(1, steps_ % window_).copy_(kept);
  ++steps_;
  return at::cat({spike.any().to(at::kDouble).view({1}), z});
}

SpikeGuardState SpikeGuard::state() const {
  const at::Tensor host = values_.cpu().contiguous();
  const double* const losses = host.const_data_ptr<double>();
  const double* const norms = losses + window_;
  return {steps_, {losses, norms}, {norms, norms + window_}};
}

bool SpikeGuard::restore(const SpikeGuardState& state) {
  const auto window = static_cast<size_t>(window_);
  if (state.losses.size() != window || state.norms.size() != window || state.steps < 0) return false;
  values_.select(0, 0).copy_(at::tensor(state.losses, at::kDouble));
  values_.select(0, 1).copy_(at::tensor(state.norms, at::kDouble));
  steps_ = state.steps;
  return true;
}

}  // namespace titan
