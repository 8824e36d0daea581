// The kernel that adds exact squares, as plain CUDA C++ without a launch, so that a test can also run it on the host
// (tests/support/cuda_on_host.h). Needs CUDA's built-in names; launched by src/kernels/exact_sum.cu.
#pragma once

#include <cstdint>
#include <cstring>

#include "titan/kernels/exact_sum.h"

namespace titan {

constexpr int kExactPerLane = 8;  // numbers that a thread keeps in registers at a time
constexpr int kExactLog2PerLane = 3;
constexpr int kExactTile = 32 * kExactPerLane;
static_assert(kExactPerLane == 1 << kExactLog2PerLane);

__device__ inline void exact_atomic_add(unsigned long long* slots, int slot, int64_t amount) {
  atomicAdd(slots + slot, static_cast<unsigned long long>(amount));  // modulo 2^64: a negative amount subtracts
}

/// One number's square; 0 for one that is not finite, which is counted instead.
__device__ inline double exact_square(float number, unsigned long long* slots) {
  uint32_t bits;
  memcpy(&bits, &number, sizeof(bits));
  bits &= 0x7fffffff;
  if (bits >= 0x7f800000) {
    exact_atomic_add(slots, bits == 0x7f800000 ? kExactInfinities : kExactNans, 1);
    return 0;
  }
  return static_cast<double>(number) * number;
}

/// Adds the squares that a warp holds. Each round takes from every one its multiple of a grid that suits the largest
/// left; an ordinary tile needs two rounds. All lanes of the warp take part.
__device__ inline void exact_add_warp(double (&squares)[kExactPerLane], unsigned long long* slots) {
  while (true) {
    double largest = 0;
    for (double square : squares) largest = fmax(largest, fabs(square));
    for (int offset = 16; offset > 0; offset /= 2) {
      largest = fmax(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    }
    if (largest == 0) return;
    const ExactGrid grid = exact_grid(largest, kExactLog2PerLane);
    double sum = 0;
    for (double& square : squares) {
      const double multiple = (square + grid.shift) - grid.shift;
      sum += multiple;
      square -= multiple;
    }
    auto multiples = static_cast<long long>(sum * grid.inverse);
    for (int offset = 16; offset > 0; offset /= 2) multiples += __shfl_xor_sync(0xffffffffu, multiples, offset);
    if (threadIdx.x % 32 == 0) {
      exact_add(multiples, grid.exponent, [&](int slot, int64_t amount) { exact_atomic_add(slots, slot, amount); });
    }
  }
}

// (The compiler may fuse number * number into the additions: the product is exact, so that rounds nothing differently.)
// Memory bandwidth decides where fp64 is fast: 4 bytes a number, read once, whole lines per warp. A warp takes a tile
// at a time and its lane 0 adds to the block's sum in shared memory, so that the slots in global memory see 22 atomic
// adds per block. Integer adds commute: the atomics' order does not change a bit. Any grid of blocks of whole warps
// will do.
static __global__ void exact_squares_kernel(const float* __restrict__ values, int64_t count,
                                            unsigned long long* slots) {
  __shared__ unsigned long long block_slots[kExactSlots];
  if (threadIdx.x < kExactSlots) block_slots[threadIdx.x] = 0;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t warps_per_block = blockDim.x / 32;
  const int64_t stride = gridDim.x * warps_per_block * kExactTile;
  int64_t begin = (blockIdx.x * warps_per_block + threadIdx.x / 32) * kExactTile;
  for (; begin < count; begin += stride) {
    double squares[kExactPerLane];
    for (int i = 0; i < kExactPerLane; ++i) {
      const int64_t index = begin + lane + int64_t{32} * i;
      squares[i] = index < count ? exact_square(values[index], block_slots) : 0;
    }
    exact_add_warp(squares, block_slots);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  int64_t sum[kExactSlots];
  for (int i = 0; i < kExactSlots; ++i) sum[i] = static_cast<int64_t>(block_slots[i]);
  exact_carry(sum);
  for (int i = 0; i < kExactSlots; ++i) exact_atomic_add(slots, i, sum[i]);
}

}  // namespace titan
