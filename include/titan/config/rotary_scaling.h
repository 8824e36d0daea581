// Frequency scaling of rotary positions, for contexts longer than the one that the model was first trained with. The
// same struct is used by the options model.override.rope_…, the model and the operation.
#pragma once

#include <cstdint>

namespace titan {

struct RotaryScaling {
  enum class Kind : uint8_t {
    llama3,   // as published with Llama 3.1 (factor 8) and 3.2 (factor 32): low frequencies are divided by the factor
    linear,   // all frequencies (Chen et al., "Extending Context Window of LLMs via Positional Interpolation", 2023)
    dynamic,  // a larger θ for tables longer than the original context ("NTK-aware" scaling)
    yarn,     // Peng et al., "YaRN", 2023: low frequencies are divided, vectors are scaled by `attention_factor`
  };
  Kind kind = Kind::llama3;
  // In the options 0 means: not given.
  double factor = 0;
  double low_freq_factor = 0;    // llama3: a frequency with fewer turns in the original context is divided
  double high_freq_factor = 0;   // llama3: one with more is unchanged
  int64_t original_context = 0;  // not for linear
  double beta_fast = 0;          // yarn: a frequency with more turns in the original context is unchanged
  double beta_slow = 0;          // yarn: one with fewer is divided
  double attention_factor = 0;   // yarn
  bool operator==(const RotaryScaling&) const = default;
};

/// Calls visit(option, key, member) for each number: its option in the section model.override, its key in a Hugging
/// Face config.json, its member. Only those that a scaling of `kind` reads.
template <class Visit>
void visit_rotary_numbers(RotaryScaling::Kind kind, const Visit& visit) {
  using S = RotaryScaling;
  visit("rope_factor", "factor", &S::factor);
  if (kind != S::Kind::linear) {
    visit("rope_original_context", "original_max_position_embeddings", &S::original_context);
  }
  if (kind == S::Kind::llama3) {
    visit("rope_low_freq_factor", "low_freq_factor", &S::low_freq_factor);
    visit("rope_high_freq_factor", "high_freq_factor", &S::high_freq_factor);
  }
  if (kind != S::Kind::yarn) return;
  visit("rope_beta_fast", "beta_fast", &S::beta_fast);
  visit("rope_beta_slow", "beta_slow", &S::beta_slow);
  visit("rope_attention_factor", "attention_factor", &S::attention_factor);
}

}  // namespace titan
