// Rotary position embedding (Su et al., "RoFormer", 2021) over adjacent pairs (2j, 2j+1), and the scalings of its
// frequencies for long contexts.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "titan/ops/column_gradients.h"
#include "titan/ops/unit_context.h"
#include "titan/ops/unit_trace.h"

namespace titan {

/// Frequency scaling for contexts longer than the one that the model was first trained with.
struct RotaryScaling {
  enum class Kind : uint8_t {
    llama3,   // as published with Llama 3.1 (factor 8) and 3.2 (factor 32): low frequencies are divided by the factor
    linear,   // all frequencies (Chen et al., "Extending Context Window of LLMs via Positional Interpolation", 2023)
    dynamic,  // a larger θ for tables longer than the original context ("NTK-aware" scaling)
    yarn,     // Peng et al., "YaRN", 2023: low frequencies are divided, vectors are scaled by `attention_factor`
  };
  Kind kind = Kind::llama3;
  double factor = 8.0;
  double low_frequency_factor = 1.0;   // llama3
  double high_frequency_factor = 4.0;  // llama3
  int64_t original_context = 8192;     // not for linear
  double beta_fast = 32.0;             // yarn: a frequency with more turns in the original context is unchanged
  double beta_slow = 1.0;              // yarn: one with fewer is divided
  double attention_factor = 1.0;       // yarn
  bool operator==(const RotaryScaling&) const = default;
};

/// exp(i·t·f_j) for t in [0, positions), f_j = θ^(−2j/head_dim) scaled: complex64 [positions, head_dim / 2] on the CPU.
/// With dynamic scaling the table is that of a sequence of `positions`.
at::Tensor rotary_table(int64_t positions, int64_t head_dim, double theta, const std::optional<RotaryScaling>& scaling);

/// Rotates query [B, T, Hq, d] and key [B, T, Hk, d] by rows of `table`: row t at sequence position t, or `positions`
/// [B or 1, T]. Query and key are overwritten unless the recorder keeps them; their tokens need not be adjacent.
/// `gradients`, if not null: those of query and key are written to its columns 0 and 1.
std::pair<at::Tensor, at::Tensor> rotate(const at::Tensor& query, const at::Tensor& key, const at::Tensor& table,
                                         const at::Tensor& positions, UnitContext& context,
                                         std::shared_ptr<ColumnGradients> gradients = nullptr);

std::pair<TracedTensor, TracedTensor> trace_rotate(UnitTrace& trace, TracedTensor query, TracedTensor key);

}  // namespace titan
