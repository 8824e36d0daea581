// Cross-entropy of rows of logits; the gradient overwrites the logits. Loss of a row: log Σ exp(logit) − logit[label];
// gradient: scale·(softmax − one-hot). Arithmetic in fp32.
#pragma once

#include "titan/kernels/elements.h"

namespace titan {

struct CrossEntropyRows {
  KernelType type = KernelType::fp32;
  int64_t rows = 0;
  int64_t vocab_size = 0;
  void* logits = nullptr;           // [rows, vocab_size]; overwritten by the gradient if `gradient`
  const int64_t* labels = nullptr;  // [rows]; `ignored` gives loss and gradient 0, an invalid label a NaN loss
  int64_t ignored = 0;
  float scale = 1;
  const float* scale_at = nullptr;  // device scalar that replaces the scale; or null
  bool gradient = true;
  float* losses = nullptr;  // [rows], unscaled
};

/// `counted`: rows with a valid label. Their logits are read, and reread for the gradient, from the cache if the rows
/// of concurrent blocks fit: 132 rows of 128,256 bf16 logits are 34 MB. A loss and a label per row are also moved, and
/// the scale if it is in memory.
constexpr KernelTraffic traffic(const CrossEntropyRows& a, int64_t counted) {
  const int64_t row = a.vocab_size * bytes_of(a.type);
  return {counted * row + a.rows * 8 + (a.scale_at ? 4 : 0), (a.gradient ? a.rows * row : 0) + a.rows * 4,
          counted * ((a.gradient ? row : 0) + bytes_of(a.type))};
}

// The same over a rank's vocabulary shard: first local sums, then, with the maximum and sum over all ranks, the
// gradient.

struct VocabularySums {
  KernelType type = KernelType::fp32;
  int64_t rows = 0;
  int64_t vocab_size = 0;  // in this rank's shard
  int64_t first_token = 0;
  const void* logits = nullptr;     // [rows, vocab_size]
  const int64_t* labels = nullptr;  // [rows], of the whole vocabulary
  float* largest = nullptr;         // [rows]: the maximum logit
  float* sums = nullptr;            // [rows]: Σ exp(logit − largest)
  float* targets = nullptr;         // [rows]: the label's logit; 0 if the label is not in this shard
};

struct VocabularyGradient {
  KernelType type = KernelType::fp32;
  int64_t rows = 0;
  int64_t vocab_size = 0;
  int64_t first_token = 0;
  void* logits = nullptr;  // [rows, vocab_size]; overwritten by the gradient
  const int64_t* labels = nullptr;
  int64_t ignored = 0;
  float scale = 1;
  const float* scale_at = nullptr;
  const float* largest = nullptr;  // [rows], over all ranks
  const float* sums = nullptr;
};

/// Reads the logits and a label per row, writes three numbers per row; `here` rows reread their label's logit.
constexpr KernelTraffic traffic(const VocabularySums& a, int64_t here) {
  return {a.rows * (a.vocab_size * bytes_of(a.type) + 8), a.rows * 12, here * bytes_of(a.type)};
}
/// Reads the logits of `counted` rows with a valid label and two numbers for each, writes all rows; a label per row.
constexpr KernelTraffic traffic(const VocabularyGradient& a, int64_t counted) {
  const int64_t row = a.vocab_size * bytes_of(a.type);
  return {counted * (row + 8) + a.rows * 8 + (a.scale_at && counted > 0 ? 4 : 0), a.rows * row, 0};
}

}  // namespace titan
