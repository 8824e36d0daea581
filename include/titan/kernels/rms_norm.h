// RMS norm fused with the residual addition: h = x + delta, y = norm(h)·w; one kernel forward, one backward plus a
// small one for the weight. Formulas: ops/norm.h; statistics and products in fp32.
#pragma once

#include "titan/kernels/elements.h"

namespace titan {

/// Rows of `columns` elements of `type`, contiguous. Pointers may be null only where stated.
struct RmsNormForward {
  KernelType type = KernelType::fp32;
  int64_t rows = 0;
  int64_t columns = 0;
  float epsilon = 0;
  bool round_once = false;  // fused_rmsnorm: no rounding before the weight
  const void* x = nullptr;
  const void* delta = nullptr;   // null: h is x, and `sum` is not written
  const void* weight = nullptr;  // [columns]
  void* sum = nullptr;           // h
  void* normed = nullptr;
  float* scale = nullptr;              // [rows]: rsqrt(mean h² + ε)
  uint32_t* largest_normed = nullptr;  // amax slot of `normed`, raised as fp32 bits; or null
};

/// Most partial sums of the weight's gradient, one for each block: fixed for a shape, so that every GPU adds in the
/// same order. Blocks of shorter rows are smaller, so more of them are needed to keep as many bytes in flight: 256 of
/// 4,096 columns are two for each of an H100's multiprocessors. The shortest rows, of heads, are a warp each.
constexpr int64_t most_rms_norm_partials(int64_t columns) {
  return columns > 2048 ? 256 : columns > 1024 ? 512 : columns > 512 ? 1024 : columns > 256 ? 2048 : 4096;
}

struct RmsNormBackward {
  KernelType type = KernelType::fp32;
  int64_t rows = 0;
  int64_t columns = 0;
  const void* d_normed = nullptr;
  const void* d_residual = nullptr;  // added to dx; or null
  const void* x = nullptr;           // the forward's h
  const void* weight = nullptr;
  const float* scale = nullptr;
  void* dx = nullptr;
  float* partials = nullptr;       // [rms_norm_partials(rows, columns), columns], scratch; null: no weight gradient
  void* d_weight = nullptr;        // [columns] of d_weight_type, each rounded once from the sum in fp32
  bool accumulate = false;         // d_weight += instead of =
  uint32_t* largest_dx = nullptr;  // amax slot of dx; or null
  KernelType d_weight_type = KernelType::fp32;
};

constexpr int64_t rms_norm_partials(int64_t rows, int64_t columns) {
  const int64_t most = most_rms_norm_partials(columns);
  return rows < most ? rows : most;
}

/// True if a row fits a block's registers: 32,768 bytes in aligned packs, 4,096 elements otherwise.
inline bool fits_rms_norm(KernelType type, int64_t columns, bool packs) {
  return columns > 0 && (packs ? columns * bytes_of(type) <= 32768 : columns <= 4096);
}
inline bool in_packs(const RmsNormForward& a) {
  return in_packs(a.type, a.columns, {a.x, a.delta, a.weight, a.sum, a.normed});
}
inline bool in_packs(const RmsNormBackward& a) {
  return in_packs(a.type, a.columns, {a.d_normed, a.d_residual, a.x, a.weight, a.dx});
}
inline bool supported(const RmsNormForward& a) { return fits_rms_norm(a.type, a.columns, in_packs(a)); }
inline bool supported(const RmsNormBackward& a) { return fits_rms_norm(a.type, a.columns, in_packs(a)); }

/// Forward: x, delta, sum and normed once, a scale per row; the weight once, and reread for every further row.
constexpr KernelTraffic traffic(const RmsNormForward& a) {
  const int64_t row = a.columns * bytes_of(a.type);
  const int64_t streams = a.delta ? 2 : 1;
  return {a.rows * row * streams + row, a.rows * (row * streams + 4), (a.rows - 1) * row};
}

/// Backward: d_normed, x, d_residual and dx once, a scale per row; the weight once for each of rms_norm_partials
/// blocks. Partial sums are written once and read by the second kernel.
constexpr KernelTraffic traffic(const RmsNormBackward& a) {
  const int64_t row = a.columns * bytes_of(a.type);
  const int64_t blocks = rms_norm_partials(a.rows, a.columns);
  const int64_t partials = a.partials ? blocks * a.columns * 4 : 0;
  const int64_t d_weight = a.partials ? a.columns * bytes_of(a.d_weight_type) : 0;
  return {a.rows * (row * (a.d_residual ? 3 : 2) + 4) + row + partials + (a.accumulate ? d_weight : 0),
          a.rows * row + partials + d_weight, (blocks - 1) * row};
}

}  // namespace titan
