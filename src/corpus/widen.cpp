#include "titan/corpus/widen.h"

namespace titan {
namespace {

// Inlined into one function per instruction set, which the compiler vectorises.
template <typename From, typename To>
[[gnu::always_inline]] inline void widen_loop(const From* __restrict from, int64_t count, To* __restrict to) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

[[gnu::always_inline]] inline void row_loop(const int32_t* __restrict ids, int64_t count, int64_t* __restrict tokens,
                                            int64_t* __restrict labels) {
  for (int64_t i = 0; i < count; ++i) {
    tokens[i] = ids[i];
    labels[i] = ids[i + 1];
  }
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void widen_with_avx2(const uint16_t* from, int64_t count, int32_t* to) {
  widen_loop(from, count, to);
}

[[gnu::target("avx2")]] void row_with_avx2(const int32_t* ids, int64_t count, int64_t* tokens, int64_t* labels) {
  row_loop(ids, count, tokens, labels);
}
#endif

}  // namespace

void widen(const uint16_t* from, int64_t count, int32_t* to) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return widen_with_avx2(from, count, to);
#endif
  widen_loop(from, count, to);
}

void widen_row(const int32_t* ids, int64_t count, int64_t* tokens, int64_t* labels) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return row_with_avx2(ids, count, tokens, labels);
#endif
  row_loop(ids, count, tokens, labels);
}

}  // namespace titan
