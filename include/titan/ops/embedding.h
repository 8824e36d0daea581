// Token embedding: a row lookup whose gradient lands in the parameter's own storage. Under tensor parallelism each rank
// looks up the words it owns and the sums are dealt out by tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include "titan/ops/parameter.h"
#include "titan/ops/token_exchange.h"
#include "titan/ops/unit_context.h"

namespace titan {

/// tokens int64 [B, T], weight [V, D] → [B·T, D], or this rank's rows of it with an `exchange` (null: none). `anchor`
/// is an empty leaf that wants a gradient: it makes backward run for a unit without a differentiable input.
at::Tensor embedding(const at::Tensor& anchor, const at::Tensor& tokens, Parameter& weight,
                     const TokenExchange* exchange, UnitContext& context);

}  // namespace titan
