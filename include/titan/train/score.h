// Negative log likelihood of texts: sums of −log p over tokens, computed with the executor's evaluation program, on
// any layout.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "titan/train/run.h"

namespace titan {

struct ScoredText {
  std::vector<int32_t> tokens;
  int64_t first = 1;  // tokens from this index on are scored; earlier ones are context
};

/// Collective: each text's negative log likelihood, summed in fp64, on every rank. A text of more than `window` + 1
/// tokens is split into consecutive windows of `window` inputs; the first target of a window has one token of context.
/// Data-parallel ranks score different texts.
std::vector<double> negative_log_likelihoods(const Run& run, std::span<const ScoredText> texts, int64_t window);

}  // namespace titan
