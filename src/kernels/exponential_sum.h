// Block-wide Σ exp(x), kept relative to the maximum x so that nothing overflows. Private to src/kernels.
#pragma once

#include <math.h>

#include "device.h"

namespace titan {
inline namespace TITAN_KERNEL_SPACE {

/// Σ exp(x − largest) over a possibly empty set of numbers.
struct ExponentialSum {
  float largest;
  float sum;
};

__device__ __forceinline__ ExponentialSum joined(ExponentialSum a, ExponentialSum b) {
  const float largest = fmaxf(a.largest, b.largest);
  // Both sides are empty, or a sum is NaN: −∞ − (−∞) in the exponents would make NaN of an empty sum.
  if (largest == -INFINITY) return {largest, a.sum + b.sum};
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

/// Over a row, by all threads of a block; the maximum is updated and the sum rescaled once per pack.
template <class T, int kWidth>
__device__ __forceinline__ ExponentialSum sum_of_row(const T* row, int64_t vocab_size) {
  const int64_t stride = static_cast<int64_t>(blockDim.x) * kWidth;
  ExponentialSum own{-INFINITY, 0};
  for (int64_t at = threadIdx.x * kWidth; at < vocab_size; at += stride) {
    float logits[kWidth];
    unpack(load<kWidth>(row + at), logits);
    float largest = own.largest;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) largest = fmaxf(largest, logits[i]);
    const float base = largest == -INFINITY ? 0 : largest;
    float sum = own.sum == 0 ? 0 : own.sum * exponential(own.largest - base);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum += exponential(logits[i] - base);
    own = {largest, sum};
  }
  return block_joined(own);
}

/// Overwrites a row's logits with the gradient: scale·(exp(logit − largest) / sum − one-hot).
template <class T, int kWidth>
__device__ __forceinline__ void write_gradient(T* row, int64_t vocab_size, int64_t label, ExponentialSum all,
                                               float scale) {
  const int64_t stride = static_cast<int64_t>(blockDim.x) * kWidth;
  const float factor = scale / all.sum;
  for (int64_t at = threadIdx.x * kWidth; at < vocab_size; at += stride) {
    float values[kWidth];
    unpack(load<kWidth>(row + at), values);
    const int64_t hit = label - at;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = exponential(values[i] - all.largest) * factor;
    if (hit >= 0 && hit < kWidth) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[i] = hit == i ? values[i] - scale : values[i];
    }
    store(row + at, packed<T>(values));
  }
}

template <class T, int kWidth>
__device__ __forceinline__ void write_zeros(T* row, int64_t vocab_size) {
  Pack<T, kWidth> zeros;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) zeros.at[i] = narrow<T>(0);
  for (int64_t at = threadIdx.x * kWidth; at < vocab_size; at += static_cast<int64_t>(blockDim.x) * kWidth)
    store(row + at, zeros);
}

}  // namespace TITAN_KERNEL_SPACE
}  // namespace titan
