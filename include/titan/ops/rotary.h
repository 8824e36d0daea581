// Rotary position embedding (Su et al., "RoFormer", 2021) over adjacent pairs (2j, 2j+1), and Llama 3.1's frequency
// scaling.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>

#include "titan/ops/unit_context.h"
#include "titan/ops/unit_trace.h"

namespace titan {

/// Long-context frequency scaling as published with Llama 3.1 (factor 8) and 3.2 (factor 32).
struct RotaryScaling {
  double factor = 8.0;
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  int64_t original_context = 8192;
};

/// exp(i·t·f_j) for t in [0, positions), f_j = θ^(−2j/head_dim) scaled: complex64 [positions, head_dim / 2] on the CPU.
at::Tensor rotary_table(int64_t positions, int64_t head_dim, double theta, const std::optional<RotaryScaling>& scaling);

/// Rotates query [B, T, Hq, d] and key [B, T, Hk, d] by rows of `table`: row t at sequence position t, or `positions`
/// [B or 1, T]. Query and key are overwritten unless the recorder keeps them.
std::pair<at::Tensor, at::Tensor> rotate(const at::Tensor& query, const at::Tensor& key, const at::Tensor& table,
                                         const at::Tensor& positions, UnitContext& context);

std::pair<TracedTensor, TracedTensor> trace_rotate(UnitTrace& trace, TracedTensor query, TracedTensor key);

}  // namespace titan
