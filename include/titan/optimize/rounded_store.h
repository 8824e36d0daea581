// Stores new weights and moments, which may be kept in bf16. Private to optimize.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "titan/kernels/stochastic_rounding.h"
#include "titan/ops/parameter.h"
#include "titan/optimize/gradient_norm.h"

namespace titan {

/// What decides the random bits of a rounding, beside the index of each element in the whole parameter.
struct RoundedNumber {
  const Parameter& parameter;
  uint64_t seed;
  int64_t step;
  KeptNumber number;
};

/// Stores fp32 `fresh` [shard] in `kept` [shard], unless the step is skipped: as it is in fp32, rounded stochastically
/// in bf16.
void store_rounded(const RoundedNumber& rounded, const at::Tensor& fresh, at::Tensor kept, const StepControl& control);

}  // namespace titan
