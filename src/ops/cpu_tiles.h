// Building blocks of CPU kernels on small fp32 tiles: loads, stores, products, exp2, transposition. Everything is
// inlined into functions that are compiled once per instruction set, so vectors are passed by reference and never cross
// a call.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "titan/kernels/cpu_values.h"

namespace titan {

/// The processor's x86-64 level: 4, 3, or 1 for anything lower. Tests the features used by our loops, because compilers
/// differ in the level names they know.
inline int processor_level() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return 4;
  }
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") ? 3 : 1;
}

}  // namespace titan

// NOLINTBEGIN(bugprone-macro-parentheses): `body` names a template
/// Defines `name`(parameters) as `body`<Simd<bytes>>(arguments), compiled for three instruction sets and dispatched at
/// run time.
#define TITAN_DEFINE_SIMD(name, body, parameters, arguments)                                        \
  namespace {                                                                                       \
  __attribute__((target("arch=x86-64-v4"))) void body##_v4 parameters { body<Simd<64>> arguments; } \
  __attribute__((target("arch=x86-64-v3"))) void body##_v3 parameters { body<Simd<32>> arguments; } \
  void body##_v1 parameters { body<Simd<16>> arguments; }                                           \
  }                                                                                                 \
  void name parameters {                                                                            \
    const int level = processor_level();                                                            \
    if (level == 4) return body##_v4 arguments;                                                     \
    if (level == 3) return body##_v3 arguments;                                                     \
    body##_v1 arguments;                                                                            \
  }
// NOLINTEND(bugprone-macro-parentheses)

namespace titan {

/// Vectors of kBytes bytes, and how many of them fit the registers besides the operands of a product.
template <int kBytes>
struct Simd {
  typedef float Vector __attribute__((vector_size(kBytes), may_alias));
  typedef int32_t Integers __attribute__((vector_size(kBytes), may_alias));
  typedef uint16_t Halves __attribute__((vector_size(kBytes / 2), may_alias));
  static constexpr int kLanes = kBytes / 4;
  static constexpr int kColumns = kBytes == 64 ? 4 : 2;        // vectors per row of a product block
  static constexpr int kAccumulators = kBytes == 64 ? 16 : 8;  // vectors per product block
};

constexpr int64_t kRowMultiple = 16;  // the widest vector, so that no loop over a tile's row has a remainder
constexpr float kLog2e = 1.44269504f;
constexpr float kLn2 = 0.693147181f;

constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// Splits scratch memory into cache-line-aligned pieces; with a null pointer it only computes the size.
struct Scratch {
  float* memory;
  int64_t floats = 0;

  float* take(int64_t wanted) {
    float* piece = memory ? memory + floats : nullptr;
    floats += round_up(wanted, 16);
    return piece;
  }
};

template <class S>
TITAN_INLINE typename S::Vector& vector_at(float* tile) {
  return *reinterpret_cast<typename S::Vector*>(tile);
}
template <class S>
TITAN_INLINE const typename S::Vector& vector_at(const float* tile) {
  return *reinterpret_cast<const typename S::Vector*>(tile);
}

/// x ← 2^x, relative error below 1e-7, for x ≤ 127; exactly 0 below the smallest normal number, NaN stays NaN. 2^x =
/// 2^n · 2^f with n the nearest integer; 2^f is a minimax polynomial (Remez) on [−½, ½] with error 1.9e-9.
template <class S>
TITAN_INLINE void power_of_two(typename S::Vector& x) {
  using Vector = typename S::Vector;
  using Integers = typename S::Integers;
  constexpr float kRounder = 12582912.0f;  // 1.5·2^23: adding it leaves the nearest integer in the low bits
  const Vector shifted = x + kRounder;
  const Vector f = x - (shifted - kRounder);
  Vector p = f * 1.53398653e-4f + 1.33997918e-3f;
  p = p * f + 9.61849093e-3f;
  p = p * f + 5.55032864e-2f;
  p = p * f + 2.40226462e-1f;
  p = p * f + 6.93147182e-1f;
  p = p * f + 1.0f;
  const Integers scaled = reinterpret_cast<Integers>(p) + (reinterpret_cast<Integers>(shifted) << 23);
  x = x < -126.0f ? Vector{} : reinterpret_cast<Vector>(scaled);
}

template <class S, int kStride, size_t... kLane>
TITAN_INLINE void exchange(typename S::Vector& a, typename S::Vector& b, std::index_sequence<kLane...>) {
  const typename S::Vector low =
      __builtin_shufflevector(a, b, (kLane & kStride ? S::kLanes + kLane - kStride : kLane)...);
  const typename S::Vector high =
      __builtin_shufflevector(a, b, (kLane & kStride ? S::kLanes + kLane : kLane + kStride)...);
  a = low;
  b = high;
}

/// Transposes a square of lanes by exchanging halves, quarters, ... (Eklundh, 1972).
template <class S, int kStride = S::kLanes / 2>
TITAN_INLINE void transpose(typename S::Vector (&rows)[S::kLanes]) {
#pragma GCC unroll 16
  for (int row = 0; row < S::kLanes; ++row) {
    if ((row & kStride) == 0) {
      exchange<S, kStride>(rows[row], rows[row + kStride], std::make_index_sequence<S::kLanes>());
    }
  }
  if constexpr (kStride > 1) transpose<S, kStride / 2>(rows);
}

/// out[c][r] = factor · in[r][c]; `rows` and `columns` are rounded up to full vectors.
template <class S>
TITAN_INLINE void transpose_tile(float* out, int64_t out_stride, const float* in, int64_t in_stride, int64_t rows,
                                 int64_t columns, float factor) {
  constexpr int kLanes = S::kLanes;
  for (int64_t row = 0; row < rows; row += kLanes) {
    for (int64_t column = 0; column < columns; column += kLanes) {
      typename S::Vector square[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) square[i] = vector_at<S>(in + (row + i) * in_stride + column) * factor;
      transpose<S>(square);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) vector_at<S>(out + (column + i) * out_stride + row) = square[i];
    }
  }
}

/// Initial value of a block's sums.
enum class Start {
  zero,
  add,    // the tile
  scale,  // the tile, each row multiplied by its factor
};

/// c[kRows][kVectors] (start) + Σ_k a(r, k) · b[k][...], accumulated in registers. a(r, k) is a[r·a_row + k·a_depth].
template <class S, Start kStart, int kRows, int kVectors>
TITAN_INLINE void multiply_block(float* __restrict c, int64_t c_row, const float* __restrict a, int64_t a_row,
                                 int64_t a_depth, const float* __restrict b, int64_t b_row, int64_t depth,
                                 const float* __restrict factors) {
  using Vector = typename S::Vector;
  Vector sums[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = kStart == Start::zero ? Vector{} : vector_at<S>(c + r * c_row + v * S::kLanes);
      if constexpr (kStart == Start::scale) sums[r][v] *= factors[r];
    }
  }
  for (int64_t k = 0; k < depth; ++k, a += a_depth, b += b_row) {
    Vector row[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) row[v] = vector_at<S>(b + v * S::kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const float factor = a[r * a_row];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] += row[v] * factor;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) vector_at<S>(c + r * c_row + v * S::kLanes) = sums[r][v];
  }
}

/// Loads fp32 or bf16 rows of `columns` values into a tile; pads rows with zeros, and adds zero rows up to `all_rows`.
template <class T>
TITAN_INLINE void load_tile(float* __restrict tile, int64_t tile_row, const T* __restrict values, int64_t stride,
                            int64_t rows, int64_t columns, int64_t all_rows) {
  for (int64_t row = 0; row < rows; ++row, values += stride, tile += tile_row) {
    for (int64_t column = 0; column < columns; ++column) tile[column] = widen(values[column]);
    for (int64_t column = columns; column < tile_row; ++column) tile[column] = 0;
  }
  std::fill(tile, tile + (all_rows - rows) * tile_row, 0.0f);
}

/// Stores: values = tile · factor.
template <class T>
TITAN_INLINE void store_tile(T* __restrict values, int64_t stride, const float* __restrict tile, int64_t tile_row,
                             int64_t rows, int64_t columns, float factor) {
  for (int64_t row = 0; row < rows; ++row, values += stride, tile += tile_row) {
    for (int64_t column = 0; column < columns; ++column) narrow(tile[column] * factor, values[column]);
  }
}

/// Accumulates: values += tile · factor, rounded once.
template <class T>
TITAN_INLINE void add_tile(T* __restrict values, int64_t stride, const float* __restrict tile, int64_t tile_row,
                           int64_t rows, int64_t columns, float factor) {
  for (int64_t row = 0; row < rows; ++row, values += stride, tile += tile_row) {
    for (int64_t column = 0; column < columns; ++column) {
      narrow(widen(values[column]) + tile[column] * factor, values[column]);
    }
  }
}

}  // namespace titan
