// silu(gate) · up, the activation of Llama's feed-forward layer (Shazeer, "GLU variants improve transformer", 2020).
// Saves its two inputs; a recompute policy may keep or drop its result (ResultKind::activation).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "titan/ops/column_gradients.h"
#include "titan/ops/unit_context.h"

namespace titan {

/// gate, up [..., H] → [..., H]; their rows need not be adjacent. `gradients`, if not null: those of gate and up are
/// written to its columns 0 and 1.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up, UnitContext& context,
                  std::shared_ptr<ColumnGradients> gradients = nullptr);

}  // namespace titan
