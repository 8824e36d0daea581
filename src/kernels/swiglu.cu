#include "titan/kernels/swiglu.h"

#include "block.h"
#include "launchers.h"

namespace titan {
inline namespace TITAN_KERNEL_SPACE {
namespace {

constexpr int kThreads = 256;
constexpr int kPacksEach = 4;  // packs per thread, so that few blocks contend for the amax slot

__device__ __forceinline__ float sigmoid(float x) { return reciprocal(1 + exponential(-x)); }

/// First element of a thread's pack: a block's packs are adjacent, so that a warp's accesses are whole lines.
template <int kWidth>
__device__ __forceinline__ int64_t place_of(int piece) {
  return ((static_cast<int64_t>(blockIdx.x) * kPacksEach + piece) * blockDim.x + threadIdx.x) * kWidth;
}

// Memory-bound; a thread issues the loads of all its packs together. With width 1 arrays need no alignment.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) swiglu_forward_kernel(SwigluForward a) {
  uint32_t largest = 0;
#pragma unroll
  for (int piece = 0; piece < kPacksEach; ++piece) {
    const int64_t at = place_of<kWidth>(piece);
    if (at >= a.count) continue;
    float gate[kWidth], up[kWidth], result[kWidth];
    unpack(load<kWidth>(static_cast<const T*>(a.gate) + at), gate);
    unpack(load<kWidth>(static_cast<const T*>(a.up) + at), up);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) result[i] = gate[i] * sigmoid(gate[i]) * up[i];
    const Pack<T, kWidth> kept = packed<T>(result);
    store(static_cast<T*>(a.result) + at, kept);
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
    const int64_t at = place_of<kWidth>(piece);
    if (at >= a.count) continue;
    float dy[kWidth], gate[kWidth], up[kWidth], d_gate[kWidth], d_up[kWidth];
    unpack(load<kWidth>(static_cast<const T*>(a.dy) + at), dy);
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
    store(static_cast<T*>(a.d_gate) + at, kept_gate);
    store(static_cast<T*>(a.d_up) + at, kept_up);
    if (a.largest_d_gate == nullptr) continue;
    largest_up = larger(largest_up, kept_up);
    largest_gate = larger(largest_gate, kept_gate);
  }
  if (a.largest_d_gate == nullptr) return;
  raise_amax(largest_gate, a.largest_d_gate);
  __syncthreads();  // the shared words of the previous call have been read
  raise_amax(largest_up, a.largest_d_up);
}

/// The grid for `count` numbers in packs of `width`.
dim3 blocks_of(int64_t count, int width) { return blocks_for(count, int64_t{kThreads} * kPacksEach * width); }

}  // namespace

void run(const SwigluForward& a, CUstream_st* stream) {
  if (a.count == 0) return;
  with_type(a.type, [&](auto number) {
    using T = decltype(number);
    in_packs(a.type, a.count, {a.gate, a.up, a.result})
        ? launch("swiglu_forward", swiglu_forward_kernel<T, kPackOf<T>>, blocks_of(a.count, kPackOf<T>), kThreads,
                 stream, a)
        : launch("swiglu_forward", swiglu_forward_kernel<T, 1>, blocks_of(a.count, 1), kThreads, stream, a);
  });
}

void run(const SwigluBackward& a, CUstream_st* stream) {
  if (a.count == 0) return;
  with_type(a.type, [&](auto number) {
    using T = decltype(number);
    in_packs(a.type, a.count, {a.dy, a.gate, a.up, a.d_gate, a.d_up})
        ? launch("swiglu_backward", swiglu_backward_kernel<T, kPackOf<T>>, blocks_of(a.count, kPackOf<T>), kThreads,
                 stream, a)
        : launch("swiglu_backward", swiglu_backward_kernel<T, 1>, blocks_of(a.count, 1), kThreads, stream, a);
  });
}

}  // namespace TITAN_KERNEL_SPACE
}  // namespace titan
