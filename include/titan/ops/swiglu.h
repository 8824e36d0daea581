// silu(gate) · up, the activation of Llama's feed-forward layer (Shazeer, "GLU variants improve transformer", 2020).
// Saves its two inputs; a recompute policy may keep or drop its result (ResultKind::activation).
#pragma once

#include <ATen/core/Tensor.h>

#include "titan/ops/unit_context.h"
#include "titan/ops/unit_trace.h"

namespace titan {

/// gate, up [..., H] → [..., H].
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up, UnitContext& context);

TracedTensor trace_swiglu(UnitTrace& trace, TracedTensor gate, TracedTensor up);

}  // namespace titan
