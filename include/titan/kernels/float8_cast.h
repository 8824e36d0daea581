// Float8: amaxes, the scales computed from them, and the cast with its transpose. Formats, scale rule and recipes are
// defined in ops/float8.h.
#pragma once

#include "titan/kernels/elements.h"

namespace titan {

enum class KernelFloat8 : uint8_t { e4m3, e5m2 };
/// The elements that share a scale: the whole matrix, a row, a column.
enum class KernelExtent : uint8_t { matrix, row, column };

/// [rows, columns], contiguous → amax per extent as fp32 bits: 1, `rows` or `columns` values, combined with the
/// existing ones by maximum (initially 0).
struct Amax {
  KernelType type = KernelType::fp32;
  int64_t rows = 0;
  int64_t columns = 0;
  KernelExtent extent = KernelExtent::matrix;
  const void* matrix = nullptr;
  uint32_t* largest = nullptr;
};

/// The maximum number of arrays in one launch, whose pointers are arguments of the kernel. The seven matrices of a
/// block take one launch; an array more costs eight bytes of every launch.
constexpr int kMostAmaxArrays = 8;

/// The scale of each amax and its inverse. Scale: the format's largest value / max(amax, 1e-12), in fp64, rounded to
/// fp32, or down to a power of two with `power_of_two`. NaN stays NaN.
struct ScalesOfAmaxes {
  KernelFloat8 format = KernelFloat8::e4m3;
  bool power_of_two = false;
  int arrays = 0;
  int64_t each = 1;  // elements per array
  const float* largest[kMostAmaxArrays] = {};
  float* values = nullptr;    // [arrays, each]
  float* inverses = nullptr;  // [arrays, each]
};

/// cast(clamp(x·scale, ± the format's largest value)), to nearest, ties to even; NaN stays NaN.
struct Float8Cast {
  KernelType type = KernelType::fp32;
  KernelFloat8 format = KernelFloat8::e4m3;
  int64_t rows = 0;              // multiple of 4 if `transposed`
  int64_t columns = 0;           // multiple of 8
  const void* matrix = nullptr;  // 16-byte aligned, like all arrays here
  KernelExtent extent = KernelExtent::matrix;
  const float* scale = nullptr;   // 1, `rows` or `columns` values
  uint8_t* data = nullptr;        // [rows, columns]; or null
  uint8_t* transposed = nullptr;  // [columns, rows]; or null
};

inline bool supported(const Float8Cast& a) {
  const bool shape = a.columns % 8 == 0 && (!a.transposed || a.rows % 4 == 0);
  return shape && in_packs(a.type, 8, {a.matrix, a.data, a.transposed});
}

constexpr KernelTraffic traffic(const Amax& a) { return {a.rows * a.columns * bytes_of(a.type), 0, 0}; }
constexpr KernelTraffic traffic(const ScalesOfAmaxes& a) { return {a.arrays * a.each * 4, a.arrays * a.each * 8, 0}; }
/// Reads the matrix once and its scales, writes each requested layout once.
constexpr KernelTraffic traffic(const Float8Cast& a) {
  const int64_t numbers = a.rows * a.columns;
  const int64_t scales = a.extent == KernelExtent::matrix ? 1 : a.extent == KernelExtent::row ? a.rows : a.columns;
  return {numbers * bytes_of(a.type) + scales * 4, numbers * ((a.data ? 1 : 0) + (a.transposed ? 1 : 0)), 0};
}

}  // namespace titan
