// The norm of all gradients, the clip factor and the check for non-finite values, computed on the device: the host does
// not wait before the optimizer runs. In two halves, so that ranks can all-reduce between them.
#pragma once

#include <ATen/core/Tensor.h>
#include <span>
#include <vector>

#include "titan/kernels/exact_sum.h"
#include "titan/ops/parameter.h"

namespace titan {

/// Numbers on the device that the optimizer reads.
struct StepControl {
  at::Tensor norm;  // fp64 scalar: L2 norm over every parameter's gradient, before clipping
  at::Tensor clip;  // scalar: min(1, max_norm / (norm + 1e-6)), or 1 without clipping; fp32 on a GPU, fp64 on a CPU
  at::Tensor skip;  // fp32 scalar: 1 if the norm or the loss is not finite
};

/// The exact sum of squares of these gradient shards, in the layout of kernels/exact_sum.h: int64 [kExactSlots] on
/// `device`, where the shards must be. An all-reduce (SUM) over ranks with disjoint elements gives the total.
at::Tensor local_squares(std::span<Parameter* const> parameters, const at::Device& device);

/// `squares` int64 [kExactSlots]: summed over all ranks. `loss`: an fp64 scalar. The norm is the root of the exact sum,
/// rounded to fp64 once: the same bits for any thread count, sharding and order. `max_norm` 0: no clipping.
StepControl control_from(const at::Tensor& squares, double max_norm, const at::Tensor& loss);

/// Both halves, if one process has every gradient, on the device of `loss` (scalar).
StepControl control_step(std::span<Parameter* const> parameters, double max_norm, const at::Tensor& loss);

// The exact sum of squares as a tensor: int64 [kExactSlots] on the device of the values. An all-reduce (SUM) gives the
// sum over all ranks, with the same bits for any sharding and order. Layout and arithmetic: kernels/exact_sum.h.

/// Σ x² over contiguous fp32 or bf16 `tensors` (any shapes) on `device`; 0 for no tensors. The limbs are normalised: up
/// to 2^31 such sums, of at most 2^40 values in total, may be added before exact_value_of. Does not synchronise the
/// host.
at::Tensor exact_squares(const std::vector<at::Tensor>& tensors, const at::Device& device);

/// The fp64 number nearest to such a sum, `slots` [kExactSlots]: a scalar on its device. Not finite exactly if some
/// value was not: NaN if one was NaN, otherwise infinity.
at::Tensor exact_value_of(const at::Tensor& slots);

// Reads a device scalar. Private to optimize.

/// The value of `scalar`, one number in fp32 or fp64. On a CPU this is a plain memory read, which debug.sync_check does
/// not count as a sync; on a GPU it synchronises.
inline double look_at(const at::Tensor& scalar) {
  if (!scalar.is_cpu()) return scalar.item<double>();
  const bool wide = scalar.scalar_type() == at::kDouble;
  return wide ? *scalar.const_data_ptr<double>() : static_cast<double>(*scalar.const_data_ptr<float>());
}

}  // namespace titan
