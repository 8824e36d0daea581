// Scales that a test gives a float8 matrix, where the program would compute them from its amax.
#pragma once

#include <ATen/core/Tensor.h>

#include "titan/ops/float8.h"

namespace titan {

inline Float8Scale float8_scale_of(const at::Tensor& value) { return {value, value.reciprocal()}; }

}  // namespace titan
