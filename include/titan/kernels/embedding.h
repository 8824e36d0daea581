// The gradient of an embedding: rows of tokens added to rows of words, in place, so that rows of words that do not
// occur are neither read nor written here. Tokens come sorted by word: each sum is made by one thread, in their order,
// and has the same bits in every run. Who calls sorts them, and has filled the gradient with zeros before the first
// microbatch.
#pragma once

#include "titan/kernels/elements.h"

namespace titan {

struct EmbeddingGradient {
  KernelType type = KernelType::fp32;  // of dy
  int64_t tokens = 0;
  int64_t columns = 0;
  int64_t first = 0;               // the word of the gradient's first row
  int64_t rows = 0;                // words outside of [first, first + rows) are another rank's: they add nothing
  const int64_t* words = nullptr;  // [tokens], ascending
  const int64_t* order = nullptr;  // [tokens]: the row of dy of each
  const void* dy = nullptr;        // [tokens, columns]
  float* gradient = nullptr;       // [rows, columns]: += the sum of a word's rows
};

inline bool in_packs(const EmbeddingGradient& a) { return in_packs(a.type, a.columns, {a.dy, a.gradient}); }

/// All words; of the `kept` tokens whose words are here, their places and rows; the gradient's rows of the `distinct`
/// words among them, in and out.
constexpr KernelTraffic traffic(const EmbeddingGradient& a, int64_t kept, int64_t distinct) {
  const int64_t sums = distinct * a.columns * 4;
  return {a.tokens * 8 + kept * (8 + a.columns * bytes_of(a.type)) + sums, sums, 0};
}

}  // namespace titan
