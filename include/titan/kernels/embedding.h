// The gradient of an embedding: rows of dy are added to the rows of their token ids in place; rows of absent token ids
// are not touched. Tokens are sorted by id, and one thread computes each sum in token order, so the bits are
// reproducible. The caller sorts, and zeroes the gradient before the first microbatch.
#pragma once

#include "titan/kernels/elements.h"

namespace titan {

struct EmbeddingGradient {
  KernelType type = KernelType::fp32;  // of dy
  int64_t tokens = 0;
  int64_t columns = 0;
  int64_t first = 0;                   // token id of the gradient's first row
  int64_t rows = 0;                    // token ids outside [first, first + rows) belong to other ranks and are skipped
  const int64_t* token_ids = nullptr;  // [tokens], ascending
  const int64_t* order = nullptr;      // [tokens]: the row of dy of each sorted token
  const void* dy = nullptr;            // [tokens, columns]
  float* gradient = nullptr;           // [rows, columns]: += the sum over the tokens of an id
};

inline bool in_packs(const EmbeddingGradient& a) { return in_packs(a.type, a.columns, {a.dy, a.gradient}); }

/// Reads all token ids; reads positions and rows of the `kept` tokens of this shard; reads and writes the gradient rows
/// of the `distinct` token ids among them.
constexpr KernelTraffic traffic(const EmbeddingGradient& a, int64_t kept, int64_t distinct) {
  const int64_t sums = distinct * a.columns * 4;
  return {a.tokens * 8 + kept * (8 + a.columns * bytes_of(a.type)) + sums, sums, 0};
}

}  // namespace titan
