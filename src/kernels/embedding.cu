#include "titan/kernels/embedding.h"

#include "launchers.h"

namespace titan {
inline namespace TITAN_KERNEL_SPACE {
namespace {

// Half of other kernels': each thread holds kAhead rows' numbers in registers, and wide rows have several blocks.
constexpr int kThreads = 128;
constexpr int kAhead = 8;  // rows in flight, to hide the latency of reading them; more would need too many registers

/// The end of the run of token ids equal to `id`, which starts at `begin`.
__device__ __forceinline__ int64_t end_of_run(const int64_t* token_ids, int64_t count, int64_t begin, int64_t id) {
  int64_t low = begin + 1, high = count;
  // Most token ids occur once: checking the next one first is enough.
  for (int64_t middle = low; low < high; middle = low + (high - low) / 2) {
    if (load_shared_word(token_ids + middle) == id) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

template <class T, int kWidth>
__device__ __forceinline__ void add(float (&sums)[kWidth], const Pack<T, kWidth>& row) {
#pragma unroll
  for (int n = 0; n < kWidth; ++n) sums[n] += widen(row.at[n]);
}

// The block of the first token of an id sums all tokens of that id; other blocks return at once. A long run is read by
// few threads, which are latency-bound: hence several rows at a time.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) embedding_gradient_kernel(EmbeddingGradient a) {
  constexpr int kPart = kWidth < 4 ? kWidth : 4;  // fp32 sums: 16 bytes are the widest access
  const int64_t begin = blockIdx.x;
  const int64_t id = load_shared_word(a.token_ids + begin);
  if (begin > 0 && load_shared_word(a.token_ids + begin - 1) == id) return;
  const int64_t row = id - a.first;
  const int64_t column = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kWidth;
  if (row < 0 || row >= a.rows || column >= a.columns) return;
  const int64_t end = end_of_run(a.token_ids, a.tokens, begin, id);
  const T* dy = static_cast<const T*>(a.dy) + column;
  const auto row_of = [&](int64_t i) { return load<kWidth>(dy + load_shared_word(a.order + i) * a.columns); };
  float sums[kWidth] = {};
  int64_t i = begin;
  for (; i + kAhead <= end; i += kAhead) {
    Pack<T, kWidth> next[kAhead];
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) next[ahead] = row_of(i + ahead);
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) add(sums, next[ahead]);
  }
  for (; i < end; ++i) add(sums, row_of(i));
  float* out = a.gradient + row * a.columns + column;
#pragma unroll
  for (int part = 0; part < kWidth; part += kPart) {
    Pack<float, kPart> sum = load<kPart>(out + part);
#pragma unroll
    for (int n = 0; n < kPart; ++n) sum.at[n] += sums[part + n];
    store(out + part, sum);
  }
}

template <class T, int kWidth>
void launch_gradient(const EmbeddingGradient& a, CUstream_st* stream) {
  const dim3 grid(static_cast<unsigned>(a.tokens), blocks_for(a.columns, int64_t{kThreads} * kWidth));
  launch("embedding_gradient", embedding_gradient_kernel<T, kWidth>, grid, dim3(kThreads), stream, a);
}

}  // namespace

void run(const EmbeddingGradient& a, CUstream_st* stream) {
  if (a.tokens == 0 || a.rows == 0 || a.columns == 0) return;
  with_type(a.type, [&](auto number) {
    using T = decltype(number);
    in_packs(a) ? launch_gradient<T, kPackOf<T>>(a, stream) : launch_gradient<T, 1>(a, stream);
  });
}

}  // namespace TITAN_KERNEL_SPACE
}  // namespace titan
