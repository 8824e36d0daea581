// The norm of all gradients, the clip factor it gives and whether anything is not finite: computed on the device, never
// waited for by the host before the optimizer runs. In two halves, so that ranks can add up between them.
#pragma once

#include <ATen/core/Tensor.h>
#include <span>
#include <vector>

#include "titan/kernels/exact_sum.h"
#include "titan/ops/parameter.h"

namespace titan {

/// What the optimizer reads on the device. All are 0-dimensional: `norm` fp64, `skip` fp32.
struct StepControl {
  at::Tensor norm;  // L2 norm over every parameter's gradient, before clipping
  at::Tensor
      clip;  // min(1, max_norm / (norm + 1e-6)), 1 when clipping is off; fp64 on the CPU, fp32 for the GPU's kernel
  at::Tensor skip;  // 1 when the norm or the loss is not finite
};

/// The exact sum of squares of these gradient shards, as optimize/exact_sum.h keeps it: int64 [kExactSlots] on
/// `device`, where the shards are. Sums of ranks that hold different elements add up, by an all-reduce, to the sum of
/// all.
at::Tensor local_squares(std::span<Parameter* const> parameters, const at::Device& device);

/// `squares`: summed over all ranks. The norm is the root of the exact sum, rounded to fp64 once: the same bits
/// whatever the threads, the cut, and the order. `max_norm` 0: no clipping.
StepControl control_from(const at::Tensor& squares, double max_norm, const at::Tensor& loss);

/// Both, where one process holds every gradient, on the device of `loss`.
StepControl control_step(std::span<Parameter* const> parameters, double max_norm, const at::Tensor& loss);

// The exact sum of squares as a tensor that ranks can add up: int64 [kExactSlots] on the device of the values. An
// all-reduce (SUM) of such tensors is the sum over all ranks, with the same bits however values were cut and ordered.
// Layout and arithmetic: kernels/exact_sum.h.

/// Σ x² over fp32 tensors that are contiguous and on `device`; of no tensor, zero. The limbs are normalised: up to 2^31
/// such sums may be added before exact_value_of, of at most 2^40 values in all. The host waits for nothing.
at::Tensor exact_squares(const std::vector<at::Tensor>& tensors, const at::Device& device);

/// The fp64 number nearest to a sum of such sums, 0-dimensional, on its device. Not finite exactly when some value was
/// not: NaN when one was NaN, otherwise infinity.
at::Tensor exact_value_of(const at::Tensor& slots);

// One number of the device for the host. Private to optimize.

/// Of a CPU a look into its memory, which is free and which debug.sync_check need not hear of; a GPU is waited for.
inline double look_at(const at::Tensor& scalar) {
  if (!scalar.is_cpu()) return scalar.item<double>();
  const bool wide = scalar.scalar_type() == at::kDouble;
  return wide ? *scalar.const_data_ptr<double>() : static_cast<double>(*scalar.const_data_ptr<float>());
}

}  // namespace titan
