// y = silu(gate)·up, forward and backward. fp32 arithmetic, rounded once.
#pragma once

#include "titan/kernels/elements.h"

namespace titan {

/// Arrays [rows, columns]; rows of gate and up are `stride` elements apart, those of the result are adjacent. Where
/// gate and up are columns of one matrix the stride is larger than `columns`.
struct SwigluForward {
  KernelType type = KernelType::fp32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
  const void* gate = nullptr;
  const void* up = nullptr;
  void* result = nullptr;
  uint32_t* largest_result = nullptr;  // amax slot of the result, raised as fp32 bits; or null
};

struct SwigluBackward {
  KernelType type = KernelType::fp32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;           // of gate and up
  int64_t gradient_stride = 0;  // of their gradients
  const void* dy = nullptr;     // rows are adjacent
  const void* gate = nullptr;
  const void* up = nullptr;
  void* d_gate = nullptr;
  void* d_up = nullptr;
  uint32_t* largest_d_gate = nullptr;  // amax slots: both or none
  uint32_t* largest_d_up = nullptr;
};

/// Kernels number rows with 32 bits.
constexpr bool supported(const SwigluForward& a) { return a.rows * a.columns < (int64_t{1} << 31); }
constexpr bool supported(const SwigluBackward& a) { return a.rows * a.columns < (int64_t{1} << 31); }

/// Forward: reads two arrays, writes one. Backward: reads three, writes two.
constexpr KernelTraffic traffic(const SwigluForward& a) {
  return {2 * a.rows * a.columns * bytes_of(a.type), a.rows * a.columns * bytes_of(a.type), 0};
}
constexpr KernelTraffic traffic(const SwigluBackward& a) {
  return {3 * a.rows * a.columns * bytes_of(a.type), 2 * a.rows * a.columns * bytes_of(a.type), 0};
}

}  // namespace titan
