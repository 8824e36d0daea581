#include "titan/kernels/lean_adam.h"

#include <cuda_runtime.h>

#include "titan/kernels/launch.h"
#include "titan/kernels/lean_adam_device.h"

namespace titan {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

template <class T>
bool aligned(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % sizeof(LeanPair<T>) == 0;
}

template <class Weight, class Moment>
void launch(void* weight, const float* gradient, void* first, void* second, int64_t count, const RoundingKey& key,
            const RoundingPlace& place, const AdamConstants& constants, const float* clip, const float* skip,
            CUstream_st* stream) {
  auto* w = static_cast<Weight*>(weight);
  auto* m = static_cast<Moment*>(first);
  auto* v = static_cast<Moment*>(second);
  const bool even_runs = place.first % 2 == 0 && (place.run >= count || (place.run % 2 == 0 && place.stride % 2 == 0));
  const bool pairwise = even_runs && aligned(w) && aligned(gradient) && aligned(m) && aligned(v);
  const int64_t pairs = pairwise ? count / 2 : 0;
  lean_adam_kernel<Weight, Moment><<<blocks_for(count - pairs), kThreads, 0, stream>>>(
      w, gradient, m, v, count, pairs, key, place, constants, clip, skip);
}

}  // namespace

void launch_lean_adam(void* weight, const float* gradient, void* first, void* second, int64_t count, bool bf16_weight,
                      bool bf16_moments, const RoundingKey& key, const RoundingPlace& place,
                      const AdamConstants& constants, const float* clip, const float* skip, CUstream_st* stream) {
  if (count == 0) return;
  const auto run = bf16_weight ? (bf16_moments ? launch<uint16_t, uint16_t> : launch<uint16_t, float>)
                               : (bf16_moments ? launch<float, uint16_t> : launch<float, float>);
  run(weight, gradient, first, second, count, key, place, constants, clip, skip, stream);
  check_launch("lean_adam");
}

void launch_round(const float* values, uint16_t* target, int64_t count, const RoundingKey& key,
                  const RoundingPlace& place, KeptNumber number, const float* skip, CUstream_st* stream) {
  if (count == 0) return;
  round_kernel<<<blocks_for(count), kThreads, 0, stream>>>(values, target, count, key, place, number, skip);
  check_launch("round");
}

}  // namespace titan
