// Token embedding: a row lookup whose gradient lands in the parameter's own storage.
#pragma once

#include <ATen/core/Tensor.h>

#include "titan/ops/parameter.h"
#include "titan/ops/unit_context.h"

namespace titan {

/// tokens int64 [B, T], weight [V, D] → [B, T, D]. `anchor` is an empty leaf that wants a gradient: it makes backward
/// run for a unit without a differentiable input.
at::Tensor embedding(const at::Tensor& anchor, const at::Tensor& tokens, Parameter& weight, UnitContext& context);

}  // namespace titan
