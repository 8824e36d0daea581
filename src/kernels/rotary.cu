#include "titan/kernels/rotary.h"

#include "block.h"
#include "launchers.h"

namespace titan {
inline namespace TITAN_KERNEL_SPACE {
namespace {

// A token of few heads takes fewer threads, one of many takes several rounds of the block. The size was not tuned on a
// GPU.
constexpr int kMostThreads = 256;

// One block per token: all heads read its table row (256 bytes of fp32 for head_dim 64) from L1. A thread rotates
// kWidth elements at a time.
template <class T, int kWidth>
__global__ void __launch_bounds__(kMostThreads) rotate_kernel(RotaryTurn a) {
  const int64_t token = blockIdx.x;
  int64_t place = token % a.length;
  if (a.positions != nullptr) {
    const int64_t row = a.position_rows == 1 ? 0 : token / a.length;
    place = load_shared_word(a.positions + row * a.length + place);
  }
  const float* factors = a.table + place * a.head_dim;
  const auto packs = static_cast<unsigned>(a.head_dim / kWidth);
  const auto query_packs = static_cast<unsigned>(a.query != nullptr ? a.query_heads : 0) * packs;
  const auto key_packs = static_cast<unsigned>(a.key != nullptr ? a.key_heads : 0) * packs;
  const bool looks = a.largest_query != nullptr || a.largest_key != nullptr;
  uint32_t largest_query = 0, largest_key = 0;
  for (unsigned pack = threadIdx.x; pack < query_packs + key_packs; pack += blockDim.x) {
    const bool is_query = pack < query_packs;
    const unsigned own = is_query ? pack : pack - query_packs;
    const int64_t from = token * (is_query ? a.query_stride : a.key_stride) + int64_t{own} * kWidth;
    float x[kWidth];
    unpack(load<kWidth>(static_cast<const T*>(is_query ? a.query : a.key) + from), x);
    const float* own_factors = factors + own % packs * kWidth;
#pragma unroll
    for (int i = 0; i < kWidth; i += 2) {
      const Pack<float, 2> factor = load<2>(own_factors + i);
      const float real = factor.at[0];
      const float imaginary = a.inverse ? -factor.at[1] : factor.at[1];
      const float even = x[i], odd = x[i + 1];
      x[i] = even * real - odd * imaginary;
      x[i + 1] = even * imaginary + odd * real;
    }
    const Pack<T, kWidth> kept = packed<T>(x);
    const int64_t to = token * (is_query ? a.turned_query_stride : a.turned_key_stride) + int64_t{own} * kWidth;
    store(static_cast<T*>(is_query ? a.turned_query : a.turned_key) + to, kept);
    if (!looks) continue;
    if (is_query) {
      largest_query = larger(largest_query, kept);
    } else {
      largest_key = larger(largest_key, kept);
    }
  }
  if (a.largest_query != nullptr) raise_amax(largest_query, a.largest_query);
  if (a.largest_key == nullptr) return;
  if (a.largest_query != nullptr) __syncthreads();  // the next call overwrites shared words that may still be read
  raise_amax(largest_key, a.largest_key);
}

template <class T, int kWidth>
void launch_turn(const RotaryTurn& a, CUstream_st* stream) {
  const int64_t heads = (a.query ? a.query_heads : 0) + (a.key ? a.key_heads : 0);
  const int64_t packs = heads * a.head_dim / kWidth;
  const int64_t threads = (packs + kWarpSize - 1) / kWarpSize * kWarpSize;
  launch("rotate", rotate_kernel<T, kWidth>, dim3(static_cast<unsigned>(a.tokens)),
         dim3(static_cast<unsigned>(threads < kMostThreads ? threads : kMostThreads)), stream, a);
}

}  // namespace

void run(const RotaryTurn& a, CUstream_st* stream) {
  if (a.tokens == 0 || (a.query == nullptr && a.key == nullptr)) return;
  with_type(a.type, [&](auto number) {
    using T = decltype(number);
    in_packs(a.type, a.head_dim, {a.query, a.key, a.turned_query, a.turned_key}) ? launch_turn<T, kPackOf<T>>(a, stream)
                                                                                 : launch_turn<T, 2>(a, stream);
  });
}

}  // namespace TITAN_KERNEL_SPACE
}  // namespace titan
