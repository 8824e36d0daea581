// y = silu(gate)·up, forward and backward. fp32 arithmetic, rounded once.
#pragma once

#include "titan/kernels/elements.h"

namespace titan {

/// `count` elements per array, contiguous.
struct SwigluForward {
  KernelType type = KernelType::fp32;
  int64_t count = 0;
  const void* gate = nullptr;
  const void* up = nullptr;
  void* result = nullptr;
  uint32_t* largest_result = nullptr;  // amax slot of the result, raised as fp32 bits; or null
};

struct SwigluBackward {
  KernelType type = KernelType::fp32;
  int64_t count = 0;
  const void* dy = nullptr;
  const void* gate = nullptr;
  const void* up = nullptr;
  void* d_gate = nullptr;
  void* d_up = nullptr;
  uint32_t* largest_d_gate = nullptr;  // amax slots: both or none
  uint32_t* largest_d_up = nullptr;
};

/// Forward: reads two arrays, writes one. Backward: reads three, writes two.
constexpr KernelTraffic traffic(const SwigluForward& a) {
  return {2 * a.count * bytes_of(a.type), a.count * bytes_of(a.type), 0};
}
constexpr KernelTraffic traffic(const SwigluBackward& a) {
  return {3 * a.count * bytes_of(a.type), 2 * a.count * bytes_of(a.type), 0};
}

}  // namespace titan
