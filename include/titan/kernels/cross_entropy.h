// Cross-entropy of rows of logits, whose gradient takes the logits' place: the row's loss is log Σ exp(logit) −
// logit[label], its gradient scale·(softmax − one-hot). Arithmetic in fp32.
#pragma once

#include "titan/kernels/elements.h"

namespace titan {

struct CrossEntropyRows {
  KernelType type = KernelType::fp32;
  int64_t rows = 0;
  int64_t words = 0;
  void* logits = nullptr;           // [rows, words]; the gradient afterwards, when `gradient`
  const int64_t* labels = nullptr;  // [rows]; `ignored` makes loss and gradient 0, one outside of the words a NaN loss
  int64_t ignored = 0;
  float scale = 1;
  const float* scale_at = nullptr;  // where the scale is instead; or null
  bool gradient = true;
  float* losses = nullptr;  // [rows], not scaled
};

/// `counted` of the rows have a label that counts. Their logits are read, and for the gradient read again, from the
/// cache where blocks that run together fit it: 132 rows of 128,256 bf16 words are 34 MB; a loss and a label a row; the
/// scale, where it is in memory.
constexpr KernelTraffic traffic(const CrossEntropyRows& a, int64_t counted) {
  const int64_t row = a.words * bytes_of(a.type);
  return {counted * row + a.rows * 8 + (a.scale_at ? 4 : 0), (a.gradient ? a.rows * row : 0) + a.rows * 4,
          counted * ((a.gradient ? row : 0) + bytes_of(a.type))};
}

// The same where each rank has some words of the vocabulary: sums of its own, then, with the largest logit and the sum
// of all ranks, the gradient.

struct VocabularySums {
  KernelType type = KernelType::fp32;
  int64_t rows = 0;
  int64_t words = 0;  // this rank's
  int64_t first_word = 0;
  const void* logits = nullptr;     // [rows, words]
  const int64_t* labels = nullptr;  // [rows], of the whole vocabulary
  float* largest = nullptr;         // [rows]: the largest logit
  float* sums = nullptr;            // [rows]: Σ exp(logit − largest)
  float* targets = nullptr;         // [rows]: the label's logit, 0 where another rank has it, or none
};

struct VocabularyGradient {
  KernelType type = KernelType::fp32;
  int64_t rows = 0;
  int64_t words = 0;
  int64_t first_word = 0;
  void* logits = nullptr;  // [rows, words]; the gradient afterwards
  const int64_t* labels = nullptr;
  int64_t ignored = 0;
  float scale = 1;
  const float* scale_at = nullptr;
  const float* largest = nullptr;  // [rows], of all ranks
  const float* sums = nullptr;
};

/// The logits and a label a row in, three numbers a row out; `here` rows have their label's logit here, read again.
constexpr KernelTraffic traffic(const VocabularySums& a, int64_t here) {
  return {a.rows * (a.words * bytes_of(a.type) + 8), a.rows * 12, here * bytes_of(a.type)};
}
/// The logits of `counted` rows with a label that counts and two numbers for each in, all rows out; a label a row.
constexpr KernelTraffic traffic(const VocabularyGradient& a, int64_t counted) {
  const int64_t row = a.words * bytes_of(a.type);
  return {counted * (row + 8) + a.rows * 8 + (a.scale_at && counted > 0 ? 4 : 0), a.rows * row, 0};
}

}  // namespace titan
