#include "titan/kernels/adam.h"

#include "bias_correction.h"
#include "block.h"
#include "launchers.h"

namespace titan {
inline namespace TITAN_KERNEL_SPACE {
namespace {

// The size was not tuned on a GPU. Eight such blocks fill a multiprocessor's 2,048 threads, if registers allow.
constexpr int kThreads = 256;
constexpr int kWidth = kPackOf<float>;

__device__ void adam_element(float& weight, float gradient, float& first, float& second, float clip,
                             const AdamConstants& c) {
  const float g = gradient * clip + c.coupled * weight;
  first = c.beta1 * first + (1 - c.beta1) * g;
  second = c.beta2 * second + (1 - c.beta2) * g * g;
  weight = weight * c.decay - c.step_size * first / (sqrtf(second) * c.root_scale + c.epsilon);
}

// Memory-bound: 28 bytes per element (30 with a bf16 copy, 2 less with a bf16 gradient) and about ten instructions.
// Each thread handles one pack of four elements of each array, so a warp's accesses are whole lines. The remainder
// (everything, if an array is not aligned to its packs) is handled one element per thread after the last pack.
template <class Gradient>
__global__ void adam_kernel(AdamStep a, int64_t packs) {
  if (load_shared_word(a.skip) != 0) return;
  const float factor = load_shared_word(a.clip);
  const AdamConstants constants = corrected(a.constants, a.corrections);
  const auto* gradients = static_cast<const Gradient*>(a.gradient);
  auto* copy = static_cast<Bf16*>(a.copy);
  uint32_t largest = 0;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index < packs) {
    Pack<float, kWidth> weight = load<kWidth>(a.weight + index * kWidth);
    float gradient[kWidth];
    unpack(load<kWidth>(gradients + index * kWidth), gradient);
    Pack<float, kWidth> first = load<kWidth>(a.first + index * kWidth);
    Pack<float, kWidth> second = load<kWidth>(a.second + index * kWidth);
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      adam_element(weight.at[i], gradient[i], first.at[i], second.at[i], factor, constants);
    store(a.weight + index * kWidth, weight);
    store(a.first + index * kWidth, first);
    store(a.second + index * kWidth, second);
    if (copy) {
      const Pack<Bf16, kWidth> kept = packed<Bf16>(weight.at);
      store(copy + index * kWidth, kept);
      if (a.largest != nullptr) largest = larger(largest, kept);
    } else if (a.largest != nullptr) {
      largest = larger(largest, weight);
    }
  }
  const int64_t tail = packs * kWidth + index - packs;
  if (index >= packs && tail < a.count) {
    float weight = load_one(a.weight + tail), first = load_one(a.first + tail), second = load_one(a.second + tail);
    adam_element(weight, widen(load_one(gradients + tail)), first, second, factor, constants);
    store_one(a.weight + tail, weight);
    store_one(a.first + tail, first);
    store_one(a.second + tail, second);
    if (copy) store_one(copy + tail, narrow<Bf16>(weight));
    largest = larger(largest, copy ? rounded<Bf16>(weight) : weight);
  }
  if (a.largest != nullptr) raise_amax(largest, a.largest);
}

}  // namespace

void run(const AdamStep& a, CUstream_st* stream) {
  if (a.count == 0) return;
  with_type(a.gradient_type, [&](auto gradient) {
    using Gradient = decltype(gradient);
    const bool aligned = in_packs(KernelType::fp32, 0, {a.weight, a.first, a.second}) &&
                         reinterpret_cast<uintptr_t>(a.gradient) % sizeof(Pack<Gradient, kWidth>) == 0 &&
                         reinterpret_cast<uintptr_t>(a.copy) % sizeof(Pack<Bf16, kWidth>) == 0;
    const int64_t packs = aligned ? a.count / kWidth : 0;
    launch("adam", adam_kernel<Gradient>, dim3(blocks_for(packs + (a.count - packs * kWidth), kThreads)),
           dim3(kThreads), stream, a, packs);
  });
}

}  // namespace TITAN_KERNEL_SPACE
}  // namespace titan
