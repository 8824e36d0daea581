// The gradient of an embedding on the CPU: rows of tokens added to rows of words.
#pragma once

#include <cstdint>

#include "titan/kernels/cpu_values.h"

namespace titan {

/// Which rows a gradient has, and which word each token is.
struct EmbeddingRows {
  int64_t first;  // word of the first row; tokens outside of [first, first + rows) add nothing
  int64_t rows;
  int64_t columns;
  const int64_t* tokens;
  int64_t count;  // of tokens
};

/// gradient[tokens[i] − first] += dy[i] in columns [begin, end), in the order of i: however columns are dealt out, each
/// sum has the same bits.
void cpu_add_embedding_rows(float* gradient, const float* dy, const EmbeddingRows& shape, int64_t begin, int64_t end);
void cpu_add_embedding_rows(float* gradient, const BFloat16Bits* dy, const EmbeddingRows& shape, int64_t begin,
                            int64_t end);

}  // namespace titan
