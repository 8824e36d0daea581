#include "cpu_rotary.h"

#include <numeric>

#include "cpu_tiles.h"

namespace titan {
namespace {

/// Scratch memory: a token's numbers, and the factors for a stretch of whole heads and whole vectors.
struct Pattern {
  int64_t size;
  float* cosines;  // c0 c0 c1 c1 ...
  float* sines;    // −s0 s0 −s1 s1 ...
  float* token;
  int64_t token_size;
  int64_t floats;

  Pattern(const RotaryShape& shape, float* memory) : size(std::lcm(shape.head_dim, kRowMultiple)) {
    Scratch scratch{memory};
    token_size = round_up(shape.heads * shape.head_dim, size);
    cosines = scratch.take(size);
    sines = scratch.take(size);
    token = scratch.take(token_size);
    floats = scratch.floats;
  }

  void set(const float* row, int64_t head_dim, bool inverse) const {
    for (int64_t i = 0; i < size; i += 2) {
      const float* pair = row + i % head_dim;
      const float sine = inverse ? -pair[1] : pair[1];
      cosines[i] = cosines[i + 1] = pair[0];
      sines[i] = -sine;
      sines[i + 1] = sine;
    }
  }
};

template <class S, size_t... kLane>
TITAN_INLINE void swap_pairs(typename S::Vector& x, std::index_sequence<kLane...>) {
  x = __builtin_shufflevector(x, x, (kLane ^ 1)...);
}

template <class S, class T>
TITAN_INLINE void rotate(T* out, const T* x, const float* table, const RotaryShape& shape, int64_t first, int64_t last,
                         bool inverse, float* scratch) {
  const Pattern pattern(shape, scratch);
  const int64_t width = shape.heads * shape.head_dim;
  for (int64_t t = first; t < last; ++t) {
    pattern.set(table + t % shape.rows * shape.head_dim, shape.head_dim, inverse);
    load_tile(pattern.token, pattern.token_size, x + t * width, 0, 1, width, 1);
    for (int64_t at = 0; at < pattern.token_size; at += pattern.size) {
      for (int64_t i = 0; i < pattern.size; i += S::kLanes) {
        typename S::Vector& value = vector_at<S>(pattern.token + at + i);
        typename S::Vector swapped = value;
        swap_pairs<S>(swapped, std::make_index_sequence<S::kLanes>());
        value = value * vector_at<S>(pattern.cosines + i) + swapped * vector_at<S>(pattern.sines + i);
      }
    }
    store_tile(out + t * width, 0, pattern.token, pattern.token_size, 1, width, 1.0f);
  }
}

}  // namespace

TITAN_DEFINE_SIMD(cpu_rotate, rotate,
                  (float* out, const float* x, const float* table, const RotaryShape& shape, int64_t first,
                   int64_t last, bool inverse, float* scratch),
                  (out, x, table, shape, first, last, inverse, scratch))
TITAN_DEFINE_SIMD(cpu_rotate, rotate,
                  (BFloat16Bits * out, const BFloat16Bits* x, const float* table, const RotaryShape& shape,
                   int64_t first, int64_t last, bool inverse, float* scratch),
                  (out, x, table, shape, first, last, inverse, scratch))

int64_t rotary_scratch(const RotaryShape& shape) { return Pattern(shape, nullptr).floats; }

}  // namespace titan
