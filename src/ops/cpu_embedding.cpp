#include "cpu_embedding.h"

namespace titan {
namespace {

template <class T>
TITAN_INLINE void add_rows(float* gradient, const T* dy, const EmbeddingRows& shape, int64_t begin, int64_t end) {
  for (int64_t i = 0; i < shape.count; ++i) {
    const int64_t row = shape.tokens[i] - shape.first;
    if (row < 0 || row >= shape.rows) continue;
    float* __restrict sum = gradient + row * shape.columns;
    const T* __restrict add = dy + i * shape.columns;
    for (int64_t column = begin; column < end; ++column) sum[column] += widen(add[column]);
  }
}

}  // namespace

TITAN_VECTORISED void cpu_add_embedding_rows(float* gradient, const float* dy, const EmbeddingRows& shape,
                                             int64_t begin, int64_t end) {
  add_rows(gradient, dy, shape, begin, end);
}

TITAN_VECTORISED void cpu_add_embedding_rows(float* gradient, const BFloat16Bits* dy, const EmbeddingRows& shape,
                                             int64_t begin, int64_t end) {
  add_rows(gradient, dy, shape, begin, end);
}

}  // namespace titan
