// Adds a bias to the result of a linear layer. The bias is sharded like the layer's rows.
#pragma once

#include <ATen/core/Tensor.h>

#include "titan/ops/parameter.h"
#include "titan/ops/unit_context.h"

namespace titan {

/// x [..., H, d] + bias [H·d] → the same shape, in place unless the recorder keeps `x`, the result of linear layer
/// `ordinal`.
at::Tensor add_bias(const at::Tensor& x, Parameter& bias, int ordinal, UnitContext& context);

}  // namespace titan
