// silu(gate) · up: the activation of Llama's feed-forward layer (Shazeer, "GLU variants improve transformer", 2020).
// It saves its two inputs; its result is one that a recompute policy may keep or drop (ResultKind::activation).
#pragma once

#include <ATen/core/Tensor.h>

#include "titan/ops/unit_context.h"

namespace titan {

/// gate, up [..., H] → [..., H].
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up, UnitContext& context);

}  // namespace titan
