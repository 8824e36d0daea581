#include "titan/kernels/exact_sum.h"

#include "launchers.h"

namespace titan {
inline namespace TITAN_KERNEL_SPACE {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 1024;  // several on each multiprocessor; each stays for many tiles
constexpr int kExactPerLane = 16;      // numbers that a thread keeps in registers, so that a warp meets seldom
constexpr int kExactLog2PerLane = 4;
constexpr int kExactTile = 32 * kExactPerLane;
static_assert(kExactPerLane == 1 << kExactLog2PerLane);

template <class Slots>
__device__ inline void exact_atomic_add(Slots& slots, int slot, int64_t amount) {
  atomic_add(slots[slot], static_cast<unsigned long long>(amount));  // modulo 2^64: a negative amount subtracts
}

/// One number's square; 0 for one that is not finite, which is counted instead.
template <class Slots>
__device__ inline double exact_square(float number, Slots& slots) {
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
template <class Slots>
__device__ inline void exact_add_warp(double (&squares)[kExactPerLane], Slots& slots) {
  while (true) {
    double largest = 0;
    for (double square : squares) largest = fmax(largest, fabs(square));
    for (int offset = 16; offset > 0; offset /= 2) {
      largest = fmax(largest, __shfl_xor_sync(kAllLanes, largest, offset));
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
    for (int offset = 16; offset > 0; offset /= 2) multiples += __shfl_xor_sync(kAllLanes, multiples, offset);
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
__global__ void exact_squares_kernel(const float* __restrict__ values, int64_t count, unsigned long long* slots) {
  TITAN_SHARED(unsigned long long, block_slots, kExactSlots);
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
      squares[i] = index < count ? exact_square(load_one(values + index), block_slots) : 0;
    }
    exact_add_warp(squares, block_slots);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  int64_t sum[kExactSlots];
  for (int i = 0; i < kExactSlots; ++i) sum[i] = static_cast<int64_t>(static_cast<unsigned long long>(block_slots[i]));
  exact_carry(sum);
  for (int i = 0; i < kExactSlots; ++i) exact_atomic_add(slots, i, sum[i]);
}

__global__ void exact_carry_kernel(int64_t* slots) { exact_carry(slots); }

__global__ void exact_value_kernel(const int64_t* slots, double* value) { *value = exact_value(slots); }

}  // namespace

void run(const ExactSquares& a, CUstream_st* stream) {
  if (a.count == 0) return;
  const int64_t wanted = blocks_for(a.count, kThreads / kWarpSize * kExactTile);
  const auto blocks = static_cast<unsigned>(wanted < kMostBlocks ? wanted : kMostBlocks);
  launch("exact_squares", exact_squares_kernel, dim3(blocks), dim3(kThreads), stream, a.values, a.count,
         reinterpret_cast<unsigned long long*>(a.slots));
}

void exact_carry_slots(int64_t* slots, CUstream_st* stream) {
  launch("exact_carry", exact_carry_kernel, dim3(1), dim3(1), stream, slots);
}

void exact_value_of_slots(const int64_t* slots, double* value, CUstream_st* stream) {
  launch("exact_value", exact_value_kernel, dim3(1), dim3(1), stream, slots, value);
}

}  // namespace TITAN_KERNEL_SPACE
}  // namespace titan
