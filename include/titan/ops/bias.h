// A bias added to the result of a linear layer. It is sharded as the layer's rows are.
#pragma once

#include <ATen/core/Tensor.h>

#include "titan/ops/parameter.h"
#include "titan/ops/unit_context.h"
#include "titan/ops/unit_trace.h"

namespace titan {

/// x [..., H, d] + bias [H·d] → the same shape, in the memory of `x` unless the recorder keeps that: it is the result
/// of the linear layer `ordinal`.
at::Tensor add_bias(const at::Tensor& x, Parameter& bias, int ordinal, UnitContext& context);

TracedTensor trace_bias(UnitTrace& trace, TracedTensor x);

}  // namespace titan
