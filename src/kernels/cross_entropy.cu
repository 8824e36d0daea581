#include "titan/kernels/cross_entropy.h"

#include <math.h>

#include "block.h"
#include "launchers.h"

namespace titan {
inline namespace TITAN_KERNEL_SPACE {
namespace {

constexpr int kThreads = 512;

/// Σ exp(x − largest) of some numbers, which may be none.
struct ExponentialSum {
  float largest;
  float sum;
};

__device__ __forceinline__ ExponentialSum joined(ExponentialSum a, ExponentialSum b) {
  const float largest = fmaxf(a.largest, b.largest);
  if (largest == -INFINITY) return {largest, a.sum + b.sum};  // nothing on either side, or NaN in a sum
  return {largest, a.sum * exponential(a.largest - largest) + b.sum * exponential(b.largest - largest)};
}

__device__ __forceinline__ ExponentialSum block_joined(ExponentialSum value) {
  TITAN_SHARED(float, largest, kWarpSize);
  TITAN_SHARED(float, sums, kWarpSize);
  for (unsigned lanes = kWarpSize / 2; lanes > 0; lanes /= 2) {
    const float other_largest = __shfl_xor_sync(kAllLanes, value.largest, lanes);
    const float other_sum = __shfl_xor_sync(kAllLanes, value.sum, lanes);
    value = joined(value, {other_largest, other_sum});
  }
  if (threadIdx.x % kWarpSize == 0) {
    largest[threadIdx.x / kWarpSize] = value.largest;
    sums[threadIdx.x / kWarpSize] = value.sum;
  }
  __syncthreads();
  ExponentialSum all{-INFINITY, 0};
  for (unsigned warp = 0; warp < blockDim.x / kWarpSize; ++warp) all = joined(all, {largest[warp], sums[warp]});
  return all;
}

// One block a row, twice over it: the first pass keeps a maximum and a sum that is rescaled when the maximum rises
// (once for a pack), the second writes the gradient. A thread reads again what it read itself, so that no other's write
// to the row can come before.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(CrossEntropyRows a) {
  T* row = static_cast<T*>(a.logits) + static_cast<int64_t>(blockIdx.x) * a.words;
  const int64_t label = load_shared_word(a.labels + blockIdx.x);
  const int64_t stride = static_cast<int64_t>(blockDim.x) * kWidth;
  if (label == a.ignored) {
    if (threadIdx.x == 0) store_one(a.losses + blockIdx.x, 0.0f);
    if (!a.gradient) return;
    Pack<T, kWidth> zeros;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) zeros.at[i] = narrow<T>(0);
    for (int64_t at = threadIdx.x * kWidth; at < a.words; at += stride) store(row + at, zeros);
    return;
  }
  ExponentialSum own{-INFINITY, 0};
  for (int64_t at = threadIdx.x * kWidth; at < a.words; at += stride) {
    const Pack<T, kWidth> logits = load<kWidth>(row + at);
    float largest = own.largest;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) largest = fmaxf(largest, widen(logits.at[i]));
    const float base = largest == -INFINITY ? 0 : largest;
    float sum = own.sum == 0 ? 0 : own.sum * exponential(own.largest - base);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum += exponential(widen(logits.at[i]) - base);
    own = {largest, sum};
  }
  const ExponentialSum all = block_joined(own);
  if (threadIdx.x == 0) {
    const bool known = label >= 0 && label < a.words;
    const float target = known ? widen(load_one(row + label)) : NAN;
    store_one(a.losses + blockIdx.x, all.largest - target + logf(all.sum));
  }
  if (!a.gradient) return;
  __syncthreads();  // the label's logit is read
  const float factor = a.scale / all.sum;
  for (int64_t at = threadIdx.x * kWidth; at < a.words; at += stride) {
    Pack<T, kWidth> values = load<kWidth>(row + at);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float probability = exponential(widen(values.at[i]) - all.largest) * factor;
      values.at[i] = narrow<T>(at + i == label ? probability - a.scale : probability);
    }
    store(row + at, values);
  }
}

}  // namespace

void run(const CrossEntropyRows& a, CUstream_st* stream) {
  if (a.rows == 0) return;
  const dim3 rows(static_cast<unsigned>(a.rows));
  with_type(a.type, [&](auto number) {
    using T = decltype(number);
    in_packs(a.type, a.words, {a.logits})
        ? launch("cross_entropy", cross_entropy_kernel<T, kPackOf<T>>, rows, dim3(kThreads), stream, a)
        : launch("cross_entropy", cross_entropy_kernel<T, 1>, rows, dim3(kThreads), stream, a);
  });
}

}  // namespace TITAN_KERNEL_SPACE
}  // namespace titan
