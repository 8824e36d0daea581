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
  bool gradient = true;
  float* losses = nullptr;  // [rows], not scaled
};

/// `counted` of the rows have a label that counts. Their logits are read, and for the gradient read again, from the
/// cache where blocks that run together fit it: 132 rows of 128,256 bf16 words are 34 MB; a loss and a label a row.
constexpr KernelTraffic traffic(const CrossEntropyRows& a, int64_t counted) {
  const int64_t row = a.words * bytes_of(a.type);
  return {counted * row + a.rows * 8, (a.gradient ? a.rows * row : 0) + a.rows * 4,
          counted * ((a.gradient ? row : 0) + bytes_of(a.type))};
}

}  // namespace titan
