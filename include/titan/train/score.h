// How likely texts are under a model: sums of −log p over tokens, through the executor's evaluation walk, on any
// layout.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "titan/train/run.h"

namespace titan {

struct ScoredText {
  std::vector<int32_t> tokens;
  int64_t first = 1;  // tokens[first] and what follows is scored; what is before is given
};

/// The sum of each text's −log p, fp64. A text of more than `window` + 1 tokens is read in windows of `window` inputs
/// that follow each other: the first token that each scores sees one token. Data-parallel ranks score different texts;
/// all ranks call alike and get all sums.
std::vector<double> negative_log_likelihoods(const Run& run, std::span<const ScoredText> texts, int64_t window);

}  // namespace titan
