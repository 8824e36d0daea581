// Block-wide sums and maxima in a fixed order: the same bits for any schedule. One-dimensional blocks of whole warps;
// all threads take part. Private to src/kernels.
#pragma once

#include "device.h"

namespace titan {
inline namespace TITAN_KERNEL_SPACE {

__device__ __forceinline__ float warp_sum(float value) {
  for (unsigned lanes = kWarpSize / 2; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kAllLanes, value, lanes);
  return value;
}

__device__ __forceinline__ uint32_t warp_max(uint32_t value) {
  for (unsigned lanes = kWarpSize / 2; lanes > 0; lanes /= 2) {
    const uint32_t other = __shfl_xor_sync(kAllLanes, value, lanes);
    value = other > value ? other : value;
  }
  return value;
}

/// Returns the sum to every thread. May be called again immediately.
__device__ __forceinline__ float block_sum(float value) {
  TITAN_SHARED(float, parts, kWarpSize);
  value = warp_sum(value);
  if (threadIdx.x % kWarpSize == 0) parts[threadIdx.x / kWarpSize] = value;
  __syncthreads();
  const unsigned lane = threadIdx.x % kWarpSize;
  value = warp_sum(lane < blockDim.x / kWarpSize ? parts[lane] : 0.0f);
  __syncthreads();  // else the next call would overwrite parts that slower warps still read
  return value;
}

/// Bits of |value|; they compare like the values, with NaN above infinity.
__device__ __forceinline__ uint32_t amax_bits(float value) { return bits_of(value) & 0x7fffffffu; }

__device__ __forceinline__ uint32_t larger(uint32_t largest, float value) {
  const uint32_t amax = amax_bits(value);
  return amax > largest ? amax : largest;
}

/// The maximum of `largest` and the amax bits of a pack.
template <class T, int N>
__device__ __forceinline__ uint32_t larger(uint32_t largest, const Pack<T, N>& pack) {
  float numbers[N];
  unpack(pack, numbers);
#pragma unroll
  for (int i = 0; i < N; ++i) largest = larger(largest, numbers[i]);
  return largest;
}

/// Raises *slot to the block's maximum. The order of atomics does not change a maximum, and most blocks find the slot
/// high enough and skip the atomic. The caller needs a barrier before the next call.
__device__ __forceinline__ void raise_amax(uint32_t largest, uint32_t* slot) {
  TITAN_SHARED(uint32_t, parts, kWarpSize);
  largest = warp_max(largest);
  if (threadIdx.x % kWarpSize == 0) parts[threadIdx.x / kWarpSize] = largest;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned warp = 1; warp < blockDim.x / kWarpSize; ++warp) {
    const uint32_t other = parts[warp];
    largest = other > largest ? other : largest;
  }
  if (largest > *const_cast<volatile uint32_t*>(slot)) atomicMax(slot, largest);
}

}  // namespace TITAN_KERNEL_SPACE
}  // namespace titan
