#include "titan/kernels/cross_entropy.h"

#include <type_traits>

#include "exponential_sum.h"
#include "launchers.h"

namespace titan {
inline namespace TITAN_KERNEL_SPACE {
namespace {

constexpr int kThreads = 512;  // four blocks a multiprocessor; docs/kernels.md says what one of 1,024 would change

// One block per row, two passes: the first computes maximum and sum, the second writes the gradient. A thread rereads
// only what it read itself, so no other thread can have overwritten it.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(CrossEntropyRows a) {
  T* row = static_cast<T*>(a.logits) + static_cast<int64_t>(blockIdx.x) * a.vocab_size;
  const int64_t label = load_shared_word(a.labels + blockIdx.x);
  const float scale = a.scale_at != nullptr ? load_shared_word(a.scale_at) : a.scale;
  if (label == a.ignored) {
    if (threadIdx.x == 0) store_one(a.losses + blockIdx.x, 0.0f);
    if (a.gradient) write_zeros<T, kWidth>(row, a.vocab_size);
    return;
  }
  const ExponentialSum all = sum_of_row<T, kWidth>(row, a.vocab_size);
  if (threadIdx.x == 0) {
    const bool known = label >= 0 && label < a.vocab_size;
    const float target = known ? widen(load_one(row + label)) : NAN;
    store_one(a.losses + blockIdx.x, all.largest - target + logf(all.sum));
  }
  if (!a.gradient) return;
  __syncthreads();  // the gradient overwrites the logits, and every thread has read the label's
  write_gradient<T, kWidth>(row, a.vocab_size, label, all, scale);
}

// The same over a rank's vocabulary shard.
template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) vocabulary_sums_kernel(VocabularySums a) {
  const T* row = static_cast<const T*>(a.logits) + static_cast<int64_t>(blockIdx.x) * a.vocab_size;
  const int64_t label = load_shared_word(a.labels + blockIdx.x) - a.first_token;
  const ExponentialSum all = sum_of_row<T, kWidth>(row, a.vocab_size);
  if (threadIdx.x != 0) return;
  store_one(a.largest + blockIdx.x, all.largest);
  store_one(a.sums + blockIdx.x, all.sum);
  store_one(a.targets + blockIdx.x, label >= 0 && label < a.vocab_size ? widen(load_one(row + label)) : 0.0f);
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kThreads) vocabulary_gradient_kernel(VocabularyGradient a) {
  T* row = static_cast<T*>(a.logits) + static_cast<int64_t>(blockIdx.x) * a.vocab_size;
  const int64_t label = load_shared_word(a.labels + blockIdx.x);
  if (label == a.ignored) return write_zeros<T, kWidth>(row, a.vocab_size);
  const float scale = a.scale_at != nullptr ? load_shared_word(a.scale_at) : a.scale;
  const ExponentialSum all{load_shared_word(a.largest + blockIdx.x), load_shared_word(a.sums + blockIdx.x)};
  write_gradient<T, kWidth>(row, a.vocab_size, label - a.first_token, all, scale);
}

/// Calls launch_rows(element, width, grid) with the logits' type, the elements per access, and one block per row.
template <class Rows, class Launch>
void by_row(const Rows& a, const Launch& launch_rows) {
  if (a.rows == 0) return;
  const dim3 grid(static_cast<unsigned>(a.rows));
  with_type(a.type, [&](auto number) {
    in_packs(a.type, a.vocab_size, {a.logits})
        ? launch_rows(number, std::integral_constant<int, kPackOf<decltype(number)>>{}, grid)
        : launch_rows(number, std::integral_constant<int, 1>{}, grid);
  });
}

}  // namespace

void run(const CrossEntropyRows& a, CUstream_st* stream) {
  by_row(a, [&](auto number, auto width, dim3 grid) {
    launch("cross_entropy", cross_entropy_kernel<decltype(number), width()>, grid, dim3(kThreads), stream, a);
  });
}

void run(const VocabularySums& a, CUstream_st* stream) {
  by_row(a, [&](auto number, auto width, dim3 grid) {
    launch("vocabulary_sums", vocabulary_sums_kernel<decltype(number), width()>, grid, dim3(kThreads), stream, a);
  });
}

void run(const VocabularyGradient& a, CUstream_st* stream) {
  by_row(a, [&](auto number, auto width, dim3 grid) {
    launch("vocabulary_gradient", vocabulary_gradient_kernel<decltype(number), width()>, grid, dim3(kThreads), stream,
           a);
  });
}

}  // namespace TITAN_KERNEL_SPACE
}  // namespace titan
