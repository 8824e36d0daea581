// The norm of all gradients, the clip factor it gives and whether anything is not finite: computed on the device, never
// waited for by the host before the optimizer runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "titan/ops/parameter.h"

namespace titan {

/// What the optimizer reads on the device. All are 0-dimensional: `norm` fp64, `skip` fp32.
struct StepControl {
  at::Tensor norm;  // L2 norm over every parameter's gradient, before clipping
  at::Tensor
      clip;  // min(1, max_norm / (norm + 1e-6)), 1 when clipping is off; fp64 on the CPU, fp32 for the GPU's kernel
  at::Tensor skip;  // 1 when the norm or the loss is not finite
};

/// `max_norm` 0: no clipping. Sums are fp64, per parameter, in the order given: the same bits whatever the thread
/// count.
StepControl control_step(std::span<Parameter* const> parameters, double max_norm, const at::Tensor& loss);

/// Σ x² of a contiguous fp32 CPU tensor in fp64: fixed blocks summed in order.
double sum_of_squares(const at::Tensor& tensor);

}  // namespace titan
