#include "titan/kernels/exact_sum.h"

#include "block.h"
#include "launchers.h"

namespace titan {
inline namespace TITAN_KERNEL_SPACE {
namespace {

constexpr int kThreads = 256;  // at least kExactSlots, which a block's first threads clear; else not tuned on a GPU
// Of 78 registers a thread, which is what the kernel takes: more blocks would wait for these, and end later.
constexpr int64_t kBlocksAtOnce = 3;
constexpr int kPerLane = 16;
constexpr int kLog2PerLane = 4;
constexpr int kTile = 32 * kPerLane;
// A thread may sum 2^9 elements, all as large as the maximum, before a warp adds up its sums: the grid of multiples is
// made for sums of that size, so that none rounds.
constexpr int kLog2PerSum = 9;
static_assert(kPerLane == 1 << kLog2PerLane);

template <class Slots>
__device__ inline void exact_atomic_add(Slots& slots, int slot, int64_t amount) {
  atomic_add(slots[slot], static_cast<unsigned long long>(amount));  // modulo 2^64: a negative amount subtracts
}

/// Adds the warp's sum of `multiples`, in units of 2^exponent. All lanes take part.
template <class Slots>
__device__ inline void exact_add_multiples(long long multiples, int exponent, Slots& slots) {
  for (int offset = 16; offset > 0; offset /= 2) multiples += __shfl_xor_sync(kAllLanes, multiples, offset);
  if (threadIdx.x % 32 == 0 && multiples != 0) {
    exact_add(multiples, exponent, [&](int slot, int64_t amount) { exact_atomic_add(slots, slot, amount); });
  }
}

/// Adds the squares of any values held by a warp. Each round subtracts from every square its multiple of a grid that
/// fits the largest remainder. All lanes take part.
template <class Slots>
__device__ inline void exact_add_any(const float (&numbers)[kPerLane], Slots& slots) {
  double squares[kPerLane];
  for (int i = 0; i < kPerLane; ++i) squares[i] = static_cast<double>(numbers[i]) * numbers[i];
  while (true) {
    double largest = 0;
    for (double square : squares) largest = fmax(largest, fabs(square));
    for (int offset = 16; offset > 0; offset /= 2) {
      largest = fmax(largest, __shfl_xor_sync(kAllLanes, largest, offset));
    }
    if (largest == 0) return;
    const ExactGrid grid = exact_grid(largest, kLog2PerLane);
    double sum = 0;
    for (double& square : squares) {
      const double multiple = (square + grid.shift) - grid.shift;
      sum += multiple;
      square -= multiple;
    }
    exact_add_multiples(static_cast<long long>(sum * grid.inverse), grid.exponent, slots);
  }
}

/// Counts non-finite values and replaces them by 0. Returns the largest remaining absolute value of the warp. All lanes
/// take part.
template <class Slots>
__device__ inline float exact_largest(float (&numbers)[kPerLane], Slots& slots) {
  uint32_t largest = 0;
  for (float& number : numbers) {
    if (amax_bits(number) >= 0x7f800000) {
      exact_atomic_add(slots, amax_bits(number) == 0x7f800000 ? kExactInfinities : kExactNans, 1);
      number = 0;
    }
    largest = larger(largest, number);
  }
  return float_of(warp_max(largest));
}

__device__ inline uint64_t double_bits(double number) {
  uint64_t bits;
  memcpy(&bits, &number, sizeof(bits));
  return bits;
}

__device__ inline bool any_of_warp(bool value) {
#ifdef __CUDACC__
  return __any_sync(kAllLanes, value);
#else
  return warp_max(value ? 1 : 0) != 0;
#endif
}

/// A thread's sums of squares on two grids, which are equal in all lanes of a warp. The sum starts at the grid's shift:
/// sum + square rounds to a multiple of the grid, and the remainder goes to the finer grid, which must represent it
/// exactly.
struct ExactSums {
  ExactGrid grids[2] = {{kExactLowest, 0, 0}, {kExactLowest, 0, 0}};  // for zeros
  double sums[2] = {0, 0};

  /// Adds the squares of the warp's values. Returns false, without a change, if the grids do not fit one of them.
  __device__ __forceinline__ bool add(const float (&numbers)[kPerLane]) {
    double coarse = sums[0], fine = sums[1];
    uint64_t lost = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const double number = numbers[i];
      const double square = number * number;  // exact, so a fused multiply-add gives the same result
      const double next_coarse = coarse + square;
      const double rest = square - (next_coarse - coarse);
      const double next_fine = fine + rest;
      lost |= double_bits(rest) ^ double_bits(next_fine - fine);
      coarse = next_coarse;
      fine = next_fine;
    }
    // Squares are not negative, so a sum that ends in the binade of its shift never left it; non-finite values did
    // leave it. Within that binade the finer sum also has few enough multiples for an integer.
    lost |= (double_bits(coarse) ^ double_bits(grids[0].shift)) >> 52;
    lost |= (double_bits(fine) ^ double_bits(grids[1].shift)) >> 52;
    if (any_of_warp(lost != 0)) return false;
    sums[0] = coarse;
    sums[1] = fine;
    return true;
  }

  template <class Slots>
  __device__ inline void hand_over(Slots& slots) const {
    for (int i = 0; i < 2; ++i) {
      const double multiples = (sums[i] - grids[i].shift) * grids[i].inverse;
      exact_add_multiples(static_cast<long long>(multiples), grids[i].exponent, slots);
    }
  }

  /// Restarts the sums, for values of at most `largest`.
  __device__ inline void begin(float largest) {
    grids[0] = exact_grid(static_cast<double>(largest) * largest, kLog2PerSum + 2);
    grids[1] = exact_grid(power_of_two(grids[0].exponent - 1), kLog2PerSum + 2);
    for (int i = 0; i < 2; ++i) sums[i] = grids[i].shift;
  }
};

/// This lane's elements of the tile that starts at `begin`; zeros after the end.
template <class T, int kWidth>
__device__ __forceinline__ void exact_load(const T* __restrict__ values, int64_t begin, int64_t count,
                                           float (&numbers)[kPerLane]) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  if (begin + kTile <= count) {
#pragma unroll
    for (int piece = 0; piece < kPerLane / kWidth; ++piece) {
      float some[kWidth];
      unpack(load<kWidth>(values + begin + (piece * 32 + lane) * kWidth), some);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) numbers[piece * kWidth + i] = some[i];
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int64_t index = begin + i * 32 + lane;
    numbers[i] = index < count ? widen(load_one(values + index)) : 0;
  }
}

// Memory-bound: 4 bytes per element (2 in bf16), read once in whole lines per warp, and a dozen instructions, five of
// them fp64. A warp processes one tile at a time. Its lane 0 adds to the block's sum in shared memory, so global memory
// receives 22 atomic adds per block. Integer adds commute: their order does not change the bits. Any grid of whole-warp
// blocks works.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads)
    exact_squares_kernel(const T* __restrict__ values, int64_t count, unsigned long long* slots) {
  TITAN_SHARED(unsigned long long, block_slots, kExactSlots);
  if (threadIdx.x < kExactSlots) block_slots[threadIdx.x] = 0;
  __syncthreads();
  const int64_t warps_per_block = blockDim.x / 32;
  const int64_t stride = gridDim.x * warps_per_block * kTile;
  int64_t begin = (blockIdx.x * warps_per_block + threadIdx.x / 32) * kTile;
  ExactSums sums;
  while (true) {
    float numbers[kPerLane];
    const bool more = begin < count;
    if (more) {
      exact_load<T, kWidth>(values, begin, count, numbers);
      begin += stride;
      if (sums.add(numbers)) continue;
    }
    sums.hand_over(block_slots);
    if (!more) break;
    sums.begin(exact_largest(numbers, block_slots));
    if (!sums.add(numbers)) exact_add_any(numbers, block_slots);
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
  const int64_t wanted = blocks_for(a.count, kThreads / kWarpSize * kTile);
  const int64_t most = a.most_blocks > 0 ? a.most_blocks : kBlocksAtOnce * multiprocessors();
  const auto blocks = static_cast<unsigned>(wanted < most ? wanted : most);
  with_type(a.type, [&](auto number) {
    using T = decltype(number);
    const auto kernel =
        in_packs(a.type, 0, {a.values}) ? exact_squares_kernel<T, kPackOf<T>> : exact_squares_kernel<T, 1>;
    launch("exact_squares", kernel, dim3(blocks), dim3(kThreads), stream, static_cast<const T*>(a.values), a.count,
           reinterpret_cast<unsigned long long*>(a.slots));
  });
}

void exact_carry_slots(int64_t* slots, CUstream_st* stream) {
  launch("exact_carry", exact_carry_kernel, dim3(1), dim3(1), stream, slots);
}

void exact_value_of_slots(const int64_t* slots, double* value, CUstream_st* stream) {
  launch("exact_value", exact_value_kernel, dim3(1), dim3(1), stream, slots, value);
}

}  // namespace TITAN_KERNEL_SPACE
}  // namespace titan
