#include "titan/kernels/rms_norm.h"

#include <type_traits>

#include "block.h"
#include "launchers.h"

namespace titan {
inline namespace TITAN_KERNEL_SPACE {
namespace {

constexpr int64_t kMostThreads = 512;  // leaves 128 registers per thread: a row is held in them

/// Distribution of a row over a block: thread t holds packs t, t + threads, …
struct RowShape {
  unsigned threads;
  int packs;  // per thread
};

RowShape shape_of(int64_t packs) {
  int64_t threads = (packs + kWarpSize - 1) / kWarpSize * kWarpSize;
  if (threads > kMostThreads) threads = kMostThreads;
  return {static_cast<unsigned>(threads), static_cast<int>((packs + threads - 1) / threads)};
}

/// First element of this thread's pack `p`.
template <int kWidth>
__device__ __forceinline__ int64_t column_of(int p) {
  return (static_cast<int64_t>(p) * blockDim.x + threadIdx.x) * kWidth;
}

// One block per row, which stays in registers: memory is read once. With 16-byte accesses, 512 threads hold a row of
// 4,096 bf16 elements in one pack each, and four such blocks keep a multiprocessor's loads in flight.
template <class T, int kWidth, int kPacks>
__global__ void __launch_bounds__(kMostThreads) rms_norm_forward_kernel(RmsNormForward a) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * a.columns;
  Pack<T, kWidth> h[kPacks];
  float squares = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int64_t column = column_of<kWidth>(p);
    if (column >= a.columns) continue;
    h[p] = load<kWidth>(static_cast<const T*>(a.x) + first + column);
    if (a.delta != nullptr) {
      float x[kWidth], delta[kWidth];
      unpack(h[p], x);
      unpack(load<kWidth>(static_cast<const T*>(a.delta) + first + column), delta);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) x[i] += delta[i];
      h[p] = packed<T>(x);
      store(static_cast<T*>(a.sum) + first + column, h[p]);
    }
    float numbers[kWidth];
    unpack(h[p], numbers);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) squares += numbers[i] * numbers[i];
  }
  const float scale = rsqrtf(block_sum(squares) / static_cast<float>(a.columns) + a.epsilon);
  uint32_t largest = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int64_t column = column_of<kWidth>(p);
    if (column >= a.columns) continue;
    float normed[kWidth], weight[kWidth];
    unpack(h[p], normed);
    unpack(load<kWidth>(static_cast<const T*>(a.weight) + column), weight);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) normed[i] *= scale;
    if (!a.round_once) unpack(packed<T>(normed), normed);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) normed[i] *= weight[i];
    const Pack<T, kWidth> kept = packed<T>(normed);
    store(static_cast<T*>(a.normed) + first + column, kept);
    if (a.largest_normed != nullptr) largest = larger(largest, kept);
  }
  if (threadIdx.x == 0) store_one(a.scale + blockIdx.x, scale);
  if (a.largest_normed != nullptr) raise_amax(largest, a.largest_normed);
}

// Block b handles rows b, b + blocks, …: with x̂ = x·r and g = dy·w, dx = r·(g − x̂·mean(g·x̂)) + d_residual. The
// weight's gradient Σ dy·x̂ stays in registers across rows and is written once, for the second kernel. Packs are kept
// in their storage dtype: four widened packs per thread would exceed the registers. The residual is loaded with the
// rest of a row: after the block's sum it would be a second wait for memory in each row.
template <class T, int kWidth, int kPacks>
__global__ void __launch_bounds__(kMostThreads) rms_norm_backward_kernel(RmsNormBackward a) {
  float d_weight[kPacks][kWidth] = {};
  Pack<T, kWidth> weight[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int64_t column = column_of<kWidth>(p);
    if (column < a.columns) weight[p] = load<kWidth>(static_cast<const T*>(a.weight) + column);
  }
  uint32_t largest = 0;
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int64_t first = row * a.columns;
    const float scale = load_shared_word(a.scale + row);
    Pack<T, kWidth> x[kPacks], dy[kPacks], residual[kPacks];
    float projection = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t column = column_of<kWidth>(p);
      if (column >= a.columns) continue;
      x[p] = load<kWidth>(static_cast<const T*>(a.x) + first + column);
      dy[p] = load<kWidth>(static_cast<const T*>(a.d_normed) + first + column);
      if (a.d_residual != nullptr) residual[p] = load<kWidth>(static_cast<const T*>(a.d_residual) + first + column);
      float own_x[kWidth], own_dy[kWidth], own_weight[kWidth];
      unpack(x[p], own_x);
      unpack(dy[p], own_dy);
      unpack(weight[p], own_weight);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float product = own_dy[i] * (own_x[i] * scale);
        d_weight[p][i] += product;
        projection += product * own_weight[i];
      }
    }
    projection = block_sum(projection) / static_cast<float>(a.columns);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t column = column_of<kWidth>(p);
      if (column >= a.columns) continue;
      float dx[kWidth] = {}, own_x[kWidth], own_dy[kWidth], own_weight[kWidth];
      if (a.d_residual != nullptr) unpack(residual[p], dx);
      unpack(x[p], own_x);
      unpack(dy[p], own_dy);
      unpack(weight[p], own_weight);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float g = own_dy[i] * own_weight[i];
        dx[i] = (g - own_x[i] * scale * projection) * scale + dx[i];
      }
      const Pack<T, kWidth> kept = packed<T>(dx);
      store(static_cast<T*>(a.dx) + first + column, kept);
      if (a.largest_dx != nullptr) largest = larger(largest, kept);
    }
  }
  if (a.partials != nullptr) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int64_t column = column_of<kWidth>(p);
      if (column >= a.columns) continue;
      float* out = a.partials + static_cast<int64_t>(blockIdx.x) * a.columns + column;
#pragma unroll
      for (int i = 0; i < kWidth; ++i) store_one(out + i, d_weight[p][i]);
    }
  }
  if (a.largest_dx != nullptr) raise_amax(largest, a.largest_dx);
}

// Partial sums are as many as blocks of the backward kernel. One thread for each column would read them one after the
// other; another number would change the order of the sum, and so its bits.
constexpr unsigned kSumParts = 8;

// 32 columns per block, eight threads per column. Each thread adds every eighth partial sum; the first one adds the
// eight results in order.
template <class Sum>
__global__ void column_sums_kernel(const float* partials, int64_t count, int64_t columns, Sum* sums, bool accumulate) {
  TITAN_SHARED(float, parts, kWarpSize* kSumParts);
  const unsigned lane = threadIdx.x % kWarpSize;
  const unsigned part = threadIdx.x / kWarpSize;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarpSize + lane;
  float sum = 0;
  if (column < columns) {
    for (int64_t row = part; row < count; row += kSumParts) sum += load_one(partials + row * columns + column);
  }
  parts[threadIdx.x] = sum;
  __syncthreads();
  if (part != 0 || column >= columns) return;
  for (unsigned other = 1; other < kSumParts; ++other) sum += parts[other * kWarpSize + lane];
  store_one(sums + column, narrow<Sum>(accumulate ? widen(load_one(sums + column)) + sum : sum));
}

/// Calls run(constant) with the smallest instantiated number of packs per thread that fits a row of `needed` packs.
/// `supported` guarantees at most four packs of 16 bytes, or eight elements, over 512 threads.
template <int kWidth, class Run>
void with_packs(int needed, const Run& run) {
  if (needed <= 1) {
    run(std::integral_constant<int, 1>{});
  } else if constexpr (kWidth == 1) {
    run(std::integral_constant<int, 8>{});
  } else {
    needed == 2 ? run(std::integral_constant<int, 2>{}) : run(std::integral_constant<int, 4>{});
  }
}

template <class T, int kWidth>
void launch_forward(const RmsNormForward& a, CUstream_st* stream) {
  const RowShape shape = shape_of(a.columns / kWidth);
  with_packs<kWidth>(shape.packs, [&](auto packs) {
    launch("rms_norm_forward", rms_norm_forward_kernel<T, kWidth, packs()>, dim3(static_cast<unsigned>(a.rows)),
           dim3(shape.threads), stream, a);
  });
}

template <class T, int kWidth>
void launch_backward(const RmsNormBackward& a, CUstream_st* stream) {
  const RowShape shape = shape_of(a.columns / kWidth);
  const int64_t blocks = rms_norm_partials(a.rows, a.columns);
  with_packs<kWidth>(shape.packs, [&](auto packs) {
    launch("rms_norm_backward", rms_norm_backward_kernel<T, kWidth, packs()>, dim3(static_cast<unsigned>(blocks)),
           dim3(shape.threads), stream, a);
  });
  if (a.partials == nullptr) return;
  with_type(a.d_weight_type, [&](auto sum) {
    using Sum = decltype(sum);
    launch("column_sums", column_sums_kernel<Sum>, dim3(blocks_for(a.columns, kWarpSize)), dim3(kWarpSize * kSumParts),
           stream, static_cast<const float*>(a.partials), blocks, a.columns, static_cast<Sum*>(a.d_weight),
           a.accumulate);
  });
}

}  // namespace

void run(const RmsNormForward& a, CUstream_st* stream) {
  if (a.rows == 0) return;
  with_type(a.type, [&](auto number) {
    using T = decltype(number);
    in_packs(a) ? launch_forward<T, kPackOf<T>>(a, stream) : launch_forward<T, 1>(a, stream);
  });
}

void run(const RmsNormBackward& a, CUstream_st* stream) {
  if (a.rows == 0) return;
  with_type(a.type, [&](auto number) {
    using T = decltype(number);
    in_packs(a) ? launch_backward<T, kPackOf<T>>(a, stream) : launch_backward<T, 1>(a, stream);
  });
}

}  // namespace TITAN_KERNEL_SPACE
}  // namespace titan
