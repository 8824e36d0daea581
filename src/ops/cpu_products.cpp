#include "cpu_products.h"

#include <cstring>

#include "cpu_tiles.h"

namespace titan {
namespace {

template <class S>
TITAN_INLINE void load(typename S::Vector& vector, const float* values) {
  std::memcpy(&vector, values, sizeof vector);
}

template <class S>
TITAN_INLINE void load(typename S::Vector& vector, const BFloat16Bits* values) {
  typename S::Halves halves;
  std::memcpy(&halves, values, sizeof halves);
  const auto words = __builtin_convertvector(halves, typename S::Integers) << 16;
  std::memcpy(&vector, &words, sizeof vector);
}

/// kRows rows of x with kWords rows of w. Every sum is one vector over the depth, whose lanes are added in order, so
/// the result is the same for any kRows and kWords.
template <class S, int kRows, int kWords, class T>
TITAN_INLINE void multiply_words(T* y, const float* x, const T* w, const FewRows& shape, int64_t word) {
  using Vector = typename S::Vector;
  Vector sums[kRows][kWords] = {};
  int64_t k = 0;
  for (; k + S::kLanes <= shape.depth; k += S::kLanes) {
    Vector factors[kWords];
#pragma GCC unroll 4
    for (int n = 0; n < kWords; ++n) load<S>(factors[n], w + (word + n) * shape.depth + k);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      Vector row;
      load<S>(row, x + m * shape.depth + k);
#pragma GCC unroll 4
      for (int n = 0; n < kWords; ++n) sums[m][n] += row * factors[n];
    }
  }
  for (int m = 0; m < kRows; ++m) {
    for (int n = 0; n < kWords; ++n) {
      float sum = 0;
      for (int lane = 0; lane < S::kLanes; ++lane) sum += sums[m][n][lane];
      for (int64_t i = k; i < shape.depth; ++i) {
        sum += x[m * shape.depth + i] * widen(w[(word + n) * shape.depth + i]);
      }
      narrow(sum, y[m * shape.all + word + n]);
    }
  }
}

template <class S, int kRows, class T>
TITAN_INLINE void multiply_rows(T* y, const float* x, const T* w, const FewRows& shape, int64_t begin, int64_t end) {
  constexpr int kWords = kRows <= 2 ? 4 : kRows <= 4 ? 2 : 1;  // kRows · kWords sums stay in registers
  int64_t word = begin;
  for (; word + kWords <= end; word += kWords) multiply_words<S, kRows, kWords>(y, x, w, shape, word);
  for (; word < end; ++word) multiply_words<S, kRows, 1>(y, x, w, shape, word);
}

template <class S, int kRows = kFewRows, class T>
TITAN_INLINE void multiply(T* y, const float* x, const T* w, const FewRows& shape, int64_t begin, int64_t end) {
  if (shape.rows == kRows) return multiply_rows<S, kRows>(y, x, w, shape, begin, end);
  if constexpr (kRows > 1) multiply<S, kRows - 1>(y, x, w, shape, begin, end);
}

}  // namespace

TITAN_DEFINE_SIMD(cpu_product_of_few_rows, multiply,
                  (float* y, const float* x, const float* w, const FewRows& shape, int64_t begin, int64_t end),
                  (y, x, w, shape, begin, end))
TITAN_DEFINE_SIMD(cpu_product_of_few_rows, multiply,
                  (BFloat16Bits * y, const float* x, const BFloat16Bits* w, const FewRows& shape, int64_t begin,
                   int64_t end),
                  (y, x, w, shape, begin, end))

}  // namespace titan
