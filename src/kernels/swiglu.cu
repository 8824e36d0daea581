#include "titan/kernels/swiglu.h"

#include "block.h"
#include "launchers.h"

namespace titan {
inline namespace TITAN_KERNEL_SPACE {
namespace {

// The size of blocks is that of adam.cu, which was not tuned on a GPU.
constexpr int kThreads = 256;
constexpr int kPacksEach = 4;  // packs per thread, so that few blocks contend for the amax slot

__device__ __forceinline__ float sigmoid(float x) { return reciprocal(1 + exponential(-x)); }

/// A thread's pack: a block's packs are adjacent, so that a warp's accesses are whole lines. Packs do not cross rows.
struct Place {
  unsigned row, column;  // of its first element

  __device__ __forceinline__ int64_t at(int64_t stride) const { return row * stride + column; }
};

template <int kWidth>
__device__ __forceinline__ Place place_of(int piece, int64_t columns) {
  const unsigned pack = (blockIdx.x * kPacksEach + static_cast<unsigned>(piece)) * blockDim.x + threadIdx.x;
  // 32 bits: a division of 64 would take longer than the arithmetic of the pack.
  const unsigned packs = static_cast<unsigned>(columns) / kWidth;
  return {pack / packs, pack % packs * kWidth};
}

// Memory-bound; a thread issues the loads of all its packs together. With width 1 arrays need no alignment.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) swiglu_forward_kernel(SwigluForward a) {
  uint32_t largest = 0;
#pragma unroll
  for (int piece = 0; piece < kPacksEach; ++piece) {
    const Place place = place_of<kWidth>(piece, a.columns);
    if (place.row >= a.rows) continue;
    const int64_t at = place.at(a.stride);
    float gate[kWidth], up[kWidth], result[kWidth];
    unpack(load<kWidth>(static_cast<const T*>(a.gate) + at), gate);
    unpack(load<kWidth>(static_cast<const T*>(a.up) + at), up);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) result[i] = gate[i] * sigmoid(gate[i]) * up[i];
    const Pack<T, kWidth> kept = packed<T>(result);
    store(static_cast<T*>(a.result) + place.at(a.columns), kept);
    if (a.largest_result != nullptr) largest = larger(largest, kept);
  }
  if (a.largest_result != nullptr) raise_amax(largest, a.largest_result);
}

// d_up = dy·silu(g); d_gate = dy·up·σ(g)·(1 + g·(1 − σ(g))).
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) swiglu_backward_kernel(SwigluBackward a) {
  uint32_t largest_gate = 0, largest_up = 0;
#pragma unroll
  for (int piece = 0; piece < kPacksEach; ++piece) {
    const Place place = place_of<kWidth>(piece, a.columns);
    if (place.row >= a.rows) continue;
    const int64_t at = place.at(a.stride), to = place.at(a.gradient_stride);
    float dy[kWidth], gate[kWidth], up[kWidth], d_gate[kWidth], d_up[kWidth];
    unpack(load<kWidth>(static_cast<const T*>(a.dy) + place.at(a.columns)), dy);
    unpack(load<kWidth>(static_cast<const T*>(a.gate) + at), gate);
    unpack(load<kWidth>(static_cast<const T*>(a.up) + at), up);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float g = gate[i];
      const float s = sigmoid(g);
      d_up[i] = dy[i] * g * s;
      d_gate[i] = dy[i] * up[i] * s * (1 + g * (1 - s));
    }
    const Pack<T, kWidth> kept_gate = packed<T>(d_gate), kept_up = packed<T>(d_up);
    store(static_cast<T*>(a.d_gate) + to, kept_gate);
    store(static_cast<T*>(a.d_up) + to, kept_up);
    if (a.largest_d_gate == nullptr) continue;
    largest_up = larger(largest_up, kept_up);
    largest_gate = larger(largest_gate, kept_gate);
  }
  if (a.largest_d_gate == nullptr) return;
  raise_amax(largest_gate, a.largest_d_gate);
  __syncthreads();  // else the next call would overwrite shared words that are still read
  raise_amax(largest_up, a.largest_d_up);
}

/// Arrays whose rows are all adjacent are one row each, so that any count in packs will do.
template <class Arguments>
Arguments with_long_rows(Arguments a, bool adjacent) {
  if (!adjacent) return a;
  a.columns *= a.rows;
  a.rows = a.rows > 0 ? 1 : 0;
  a.stride = a.columns;
  return a;
}

/// The grid for packs of `width`.
template <class Arguments>
dim3 blocks_of(const Arguments& a, int width) {
  return blocks_for(a.rows * a.columns, int64_t{kThreads} * kPacksEach * width);
}

}  // namespace

void run(const SwigluForward& given, CUstream_st* stream) {
  if (given.rows == 0 || given.columns == 0) return;
  const SwigluForward a = with_long_rows(given, given.stride == given.columns);
  with_type(a.type, [&](auto number) {
    using T = decltype(number);
    a.stride % kPackOf<T> == 0 && in_packs(a.type, a.columns, {a.gate, a.up, a.result})
        ? launch("swiglu_forward", swiglu_forward_kernel<T, kPackOf<T>>, blocks_of(a, kPackOf<T>), kThreads, stream, a)
        : launch("swiglu_forward", swiglu_forward_kernel<T, 1>, blocks_of(a, 1), kThreads, stream, a);
  });
}

void run(const SwigluBackward& given, CUstream_st* stream) {
  if (given.rows == 0 || given.columns == 0) return;
  SwigluBackward a = with_long_rows(given, given.stride == given.columns && given.gradient_stride == given.columns);
  if (a.rows == 1) a.gradient_stride = a.columns;
  with_type(a.type, [&](auto number) {
    using T = decltype(number);
    a.stride % kPackOf<T> == 0 && a.gradient_stride % kPackOf<T> == 0 &&
            in_packs(a.type, a.columns, {a.dy, a.gate, a.up, a.d_gate, a.d_up})
        ? launch("swiglu_backward", swiglu_backward_kernel<T, kPackOf<T>>, blocks_of(a, kPackOf<T>), kThreads, stream,
                 a)
        : launch("swiglu_backward", swiglu_backward_kernel<T, 1>, blocks_of(a, 1), kThreads, stream, a);
  });
}

}  // namespace TITAN_KERNEL_SPACE
}  // namespace titan
