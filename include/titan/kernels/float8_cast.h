// Float8: the largest amaxes that scales are made of, scales, and the cast with its transpose. Formats, the rule of
// scales and what is cast are ops/float8.h's.
#pragma once

#include "titan/kernels/elements.h"

namespace titan {

enum class KernelFloat8 : uint8_t { e4m3, e5m2 };
/// What shares a number: all of a matrix, a row, a column.
enum class KernelExtent : uint8_t { matrix, row, column };

/// [rows, columns], contiguous → the largest amaxes of an extent as fp32 bits: 1, `rows` or `columns` of them,
/// raised from what is there (0 for the first).
struct Amax {
  KernelType type = KernelType::fp32;
  int64_t rows = 0;
  int64_t columns = 0;
  KernelExtent extent = KernelExtent::matrix;
  const void* matrix = nullptr;
  uint32_t* largest = nullptr;
};

/// What one launch makes scales of, at most.
constexpr int kMostAmaxArrays = 8;

/// The scale of each largest amax and its inverse: the format's largest value / max(amax, 1e-12), in fp64,
/// rounded to fp32, with `power_of_two` down to one; 1 / that. A NaN stays one.
struct ScalesOfAmaxes {
  KernelFloat8 format = KernelFloat8::e4m3;
  bool power_of_two = false;
  int arrays = 0;
  int64_t each = 1;  // numbers in an array
  const float* largest[kMostAmaxArrays] = {};
  float* values = nullptr;    // [arrays, each]
  float* inverses = nullptr;  // [arrays, each]
};

/// cast(clamp(x·scale, ± the format's largest value)), to nearest, ties to even; NaN stays one.
struct Float8Cast {
  KernelType type = KernelType::fp32;
  KernelFloat8 format = KernelFloat8::e4m3;
  int64_t rows = 0;              // multiple of 4 when `transposed`
  int64_t columns = 0;           // multiple of 8
  const void* matrix = nullptr;  // 16-byte aligned, as all are
  KernelExtent extent = KernelExtent::matrix;
  const float* scale = nullptr;   // 1, `rows` or `columns`
  uint8_t* data = nullptr;        // [rows, columns]; or null
  uint8_t* transposed = nullptr;  // [columns, rows]; or null
};

inline bool supported(const Float8Cast& a) {
  const bool shape = a.columns % 8 == 0 && (!a.transposed || a.rows % 4 == 0);
  return shape && in_packs(a.type, 8, {a.matrix, a.data, a.transposed});
}

constexpr KernelTraffic traffic(const Amax& a) { return {a.rows * a.columns * bytes_of(a.type), 0, 0}; }
constexpr KernelTraffic traffic(const ScalesOfAmaxes& a) { return {a.arrays * a.each * 4, a.arrays * a.each * 8, 0}; }
/// The matrix once in, once out for each side that is wanted; its scales.
constexpr KernelTraffic traffic(const Float8Cast& a) {
  const int64_t numbers = a.rows * a.columns;
  const int64_t scales = a.extent == KernelExtent::matrix ? 1 : a.extent == KernelExtent::row ? a.rows : a.columns;
  return {numbers * bytes_of(a.type) + scales * 4, numbers * ((a.data ? 1 : 0) + (a.transposed ? 1 : 0)), 0};
}

}  // namespace titan
