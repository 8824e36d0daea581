// Rotary position embedding (Su et al., "RoFormer", 2021) over adjacent pairs (2j, 2j+1), and the scalings of its
// frequencies for long contexts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "titan/config/rotary_scaling.h"
#include "titan/ops/column_gradients.h"
#include "titan/ops/unit_context.h"
#include "titan/plan/operations.h"

namespace titan {

/// exp(i·t·f_j) for t in [0, positions), f_j = θ^(−2j/head_dim) scaled: complex64 [positions, head_dim / 2] on the CPU.
/// With dynamic scaling the table is that of a sequence of `positions`.
at::Tensor rotary_table(int64_t positions, int64_t head_dim, double theta, const std::optional<RotaryScaling>& scaling);

/// Rotates query [B, T, Hq, d] and key [B, T, Hk, d] by rows of `table`: row t at sequence position t, or `positions`
/// [B or 1, T]. Query and key are overwritten unless the recorder keeps them; their tokens need not be adjacent.
/// `gradients`, if not null: those of query and key are written to its columns 0 and 1.
std::pair<at::Tensor, at::Tensor> rotate(const at::Tensor& query, const at::Tensor& key, const at::Tensor& table,
                                         const at::Tensor& positions, UnitContext& context,
                                         std::shared_ptr<ColumnGradients> gradients = nullptr);

}  // namespace titan
