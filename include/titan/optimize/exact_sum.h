// The exact sum of squares as a tensor that ranks can add up: int64 [kExactSlots] on the device of the values. An
// all-reduce (SUM) of such tensors is the sum over all ranks, with the same bits however values were cut and ordered.
// Layout and arithmetic: kernels/exact_sum.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "titan/kernels/exact_sum.h"

namespace titan {

/// Σ x² over fp32 tensors that are contiguous and on `device`; of no tensor, zero. The limbs are normalised: up to 2^31
/// such sums may be added before exact_value_of, of at most 2^40 values in all. The host waits for nothing.
at::Tensor exact_squares(const std::vector<at::Tensor>& tensors, const at::Device& device);

/// The fp64 number nearest to a sum of such sums, 0-dimensional, on its device. Not finite exactly when some value was
/// not: NaN when one was NaN, otherwise infinity.
at::Tensor exact_value_of(const at::Tensor& slots);

}  // namespace titan
