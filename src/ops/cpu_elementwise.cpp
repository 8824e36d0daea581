#include "cpu_elementwise.h"

#include <cstring>
#include <numeric>
#include <type_traits>

#include "cpu_tiles.h"

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

namespace {

constexpr int64_t kLanes = 32;  // partial sums in a fixed order: the same bits with every width of vectors

template <class T>
TITAN_INLINE float rounded(float value) {
  T memory;
  narrow(value, memory);
  return widen(memory);
}

TITAN_INLINE float sum_of(const float (&lanes)[kLanes]) {
  float total = 0;
  for (float lane : lanes) total += lane;
  return total;
}

/// Σ term(i) over [0, dim).
template <class Term>
TITAN_INLINE float row_sum(int64_t dim, const Term& term) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  float total = sum_of(lanes);
  for (; i < dim; ++i) total += term(i);
  return total;
}

template <class T>
TITAN_INLINE void rms_norm(T* y, float* scale, const T* x, const T* weight, RmsNormShape shape, float epsilon,
                           bool fused) {
  const int64_t dim = shape.dim;
  for (int64_t row = 0; row < shape.rows; ++row, x += dim, y += dim) {
    const float squares = row_sum(dim, [=](int64_t i) { return widen(x[i]) * widen(x[i]); });
    const float factor = 1.0f / __builtin_sqrtf(squares / static_cast<float>(dim) + epsilon);
    scale[row] = factor;
    if (fused) {
      for (int64_t i = 0; i < dim; ++i) narrow(widen(x[i]) * factor * widen(weight[i]), y[i]);
    } else {
      for (int64_t i = 0; i < dim; ++i) narrow(rounded<T>(widen(x[i]) * factor) * widen(weight[i]), y[i]);
    }
  }
}

template <class T>
TITAN_INLINE void rms_norm_backward(T* __restrict dx, float* __restrict weight_gradient, const T* __restrict dy,
                                    const T* d_residual, const T* __restrict x, const float* __restrict scale,
                                    const T* __restrict weight, RmsNormShape shape) {
  const int64_t dim = shape.dim;
  for (int64_t row = 0; row < shape.rows; ++row, x += dim, dy += dim, dx += dim) {
    const float factor = scale[row];
    const float projection = factor *
                             row_sum(dim, [=](int64_t i) { return widen(dy[i]) * widen(weight[i]) * widen(x[i]); }) /
                             static_cast<float>(dim);
    for (int64_t i = 0; i < dim; ++i) weight_gradient[i] += widen(dy[i]) * (widen(x[i]) * factor);
    if (d_residual) {
      for (int64_t i = 0; i < dim; ++i) {
        const float unit = widen(x[i]) * factor;
        narrow(factor * (widen(dy[i]) * widen(weight[i]) - unit * projection) + widen(d_residual[i]), dx[i]);
      }
      d_residual += dim;
    } else {
      for (int64_t i = 0; i < dim; ++i) {
        const float unit = widen(x[i]) * factor;
        narrow(factor * (widen(dy[i]) * widen(weight[i]) - unit * projection), dx[i]);
      }
    }
  }
}

}  // namespace

TITAN_VECTORISED void cpu_rms_norm(float* y, float* scale, const float* x, const float* weight, RmsNormShape shape,
                                   float epsilon, bool fused) {
  rms_norm(y, scale, x, weight, shape, epsilon, fused);
}

TITAN_VECTORISED void cpu_rms_norm(BFloat16Bits* y, float* scale, const BFloat16Bits* x, const BFloat16Bits* weight,
                                   RmsNormShape shape, float epsilon, bool fused) {
  rms_norm(y, scale, x, weight, shape, epsilon, fused);
}

TITAN_VECTORISED void cpu_rms_norm_backward(float* dx, float* weight_gradient, const float* dy, const float* d_residual,
                                            const float* x, const float* scale, const float* weight,
                                            RmsNormShape shape) {
  rms_norm_backward(dx, weight_gradient, dy, d_residual, x, scale, weight, shape);
}

TITAN_VECTORISED void cpu_rms_norm_backward(BFloat16Bits* dx, float* weight_gradient, const BFloat16Bits* dy,
                                            const BFloat16Bits* d_residual, const BFloat16Bits* x, const float* scale,
                                            const BFloat16Bits* weight, RmsNormShape shape) {
  rms_norm_backward(dx, weight_gradient, dy, d_residual, x, scale, weight, shape);
}

namespace {

/// Scratch memory: a token's values, and the factors for whole heads and whole vectors.
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
    load_tile(pattern.token, pattern.token_size, x + t * shape.x_stride, 0, 1, width, 1);
    for (int64_t at = 0; at < pattern.token_size; at += pattern.size) {
      for (int64_t i = 0; i < pattern.size; i += S::kLanes) {
        typename S::Vector& value = vector_at<S>(pattern.token + at + i);
        typename S::Vector swapped = value;
        swap_pairs<S>(swapped, std::make_index_sequence<S::kLanes>());
        value = value * vector_at<S>(pattern.cosines + i) + swapped * vector_at<S>(pattern.sines + i);
      }
    }
    store_tile(out + t * shape.out_stride, 0, pattern.token, pattern.token_size, 1, width, 1.0f);
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

namespace {

constexpr int64_t kChunk = 512;  // fp32 elements per chunk: fits in L1

/// A chunk of an array in fp32, zero-padded to whole vectors.
struct Chunk {
  alignas(64) float values[kChunk];

  template <class T>
  TITAN_INLINE void load(const T* from, int64_t count) {
    load_tile(values, round_up(count, kRowMultiple), from, 0, 1, count, 1);
  }
  template <class T>
  TITAN_INLINE void store(T* to, int64_t count) const {
    store_tile(to, 0, values, kChunk, 1, count, 1.0f);
  }
};

// By reference: a function that returns a vector has another ABI where the vector is wider than the baseline's.

template <class S>
TITAN_INLINE void load_vector(typename S::Vector& vector, const float* values) {
  std::memcpy(&vector, values, sizeof vector);
}

/// s = 1 / (1 + e^−x). The exponent is clamped so that very negative x gives a small number instead of 0·∞.
template <class S>
TITAN_INLINE void sigmoid(typename S::Vector& s, const typename S::Vector& x) {
  s = x * -kLog2e;
  s = s > 126.0f ? typename S::Vector{} + 126.0f : s;
  power_of_two<S>(s);
  s = 1.0f / (1.0f + s);
}

/// `gate` becomes the result.
template <class S>
TITAN_INLINE void swiglu_of(typename S::Vector& gate, const typename S::Vector& up) {
  typename S::Vector s;
  sigmoid<S>(s, gate);
  gate *= s * up;
}

/// `gate` and `up` become their gradients.
template <class S>
TITAN_INLINE void swiglu_gradients_of(typename S::Vector& gate, typename S::Vector& up, const typename S::Vector& dy) {
  typename S::Vector s;
  sigmoid<S>(s, gate);
  const typename S::Vector d_gate = dy * up * (s * (1.0f + gate * (1.0f - s)));
  up = dy * (gate * s);
  gate = d_gate;
}

template <class S, class T>
TITAN_INLINE void forward(T* out, const T* gate, const T* up, int64_t count) {
  int64_t at = 0;
  if constexpr (std::is_same_v<T, float>) {
    // Read and written in place: rows of gate‖up are slices of longer rows, and copying them to chunks takes as long as
    // the arithmetic.
    for (; at + S::kLanes <= count; at += S::kLanes) {
      typename S::Vector g, u;
      load_vector<S>(g, gate + at);
      load_vector<S>(u, up + at);
      swiglu_of<S>(g, u);
      std::memcpy(out + at, &g, sizeof g);
    }
  }
  Chunk g, u;
  for (; at < count; at += kChunk) {
    const int64_t size = std::min(kChunk, count - at);
    g.load(gate + at, size);
    u.load(up + at, size);
    for (int64_t i = 0; i < size; i += S::kLanes) swiglu_of<S>(vector_at<S>(g.values + i), vector_at<S>(u.values + i));
    g.store(out + at, size);
  }
}

template <class S, class T>
TITAN_INLINE void backward(T* d_gate, T* d_up, const T* d_out, const T* gate, const T* up, int64_t count) {
  int64_t at = 0;
  if constexpr (std::is_same_v<T, float>) {
    for (; at + S::kLanes <= count; at += S::kLanes) {
      typename S::Vector g, u, d;
      load_vector<S>(g, gate + at);
      load_vector<S>(u, up + at);
      load_vector<S>(d, d_out + at);
      swiglu_gradients_of<S>(g, u, d);
      std::memcpy(d_gate + at, &g, sizeof g);
      std::memcpy(d_up + at, &u, sizeof u);
    }
  }
  Chunk g, u, d;
  for (; at < count; at += kChunk) {
    const int64_t size = std::min(kChunk, count - at);
    g.load(gate + at, size);
    u.load(up + at, size);
    d.load(d_out + at, size);
    for (int64_t i = 0; i < size; i += S::kLanes) {
      swiglu_gradients_of<S>(vector_at<S>(g.values + i), vector_at<S>(u.values + i), vector_at<S>(d.values + i));
    }
    g.store(d_gate + at, size);
    u.store(d_up + at, size);
  }
}

}  // namespace

TITAN_DEFINE_SIMD(cpu_swiglu, forward, (float* out, const float* gate, const float* up, int64_t count),
                  (out, gate, up, count))
TITAN_DEFINE_SIMD(cpu_swiglu, forward,
                  (BFloat16Bits * out, const BFloat16Bits* gate, const BFloat16Bits* up, int64_t count),
                  (out, gate, up, count))
TITAN_DEFINE_SIMD(cpu_swiglu_backward, backward,
                  (float* d_gate, float* d_up, const float* d, const float* gate, const float* up, int64_t count),
                  (d_gate, d_up, d, gate, up, count))
TITAN_DEFINE_SIMD(cpu_swiglu_backward, backward,
                  (BFloat16Bits * d_gate, BFloat16Bits* d_up, const BFloat16Bits* d, const BFloat16Bits* gate,
                   const BFloat16Bits* up, int64_t count),
                  (d_gate, d_up, d, gate, up, count))

}  // namespace titan
