#include "titan/kernels/adam.h"

#include "bias_correction.h"
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

// Memory-bound: 28 bytes per element (30 with a bf16 copy) and about ten instructions. Each thread handles one 16-byte
// pack of each array, so a warp's accesses are whole lines. The remainder (everything, if an array is not 16-byte
// aligned) is handled one element per thread after the last pack.
__global__ void adam_kernel(AdamStep a, int64_t packs) {
  if (load_shared_word(a.skip) != 0) return;
  const float factor = load_shared_word(a.clip);
  const AdamConstants constants = corrected(a.constants, a.corrections);
  auto* copy = static_cast<Bf16*>(a.copy);
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index < packs) {
    Pack<float, kWidth> weight = load<kWidth>(a.weight + index * kWidth);
    const Pack<float, kWidth> gradient = load<kWidth>(a.gradient + index * kWidth);
    Pack<float, kWidth> first = load<kWidth>(a.first + index * kWidth);
    Pack<float, kWidth> second = load<kWidth>(a.second + index * kWidth);
#pragma unroll
    for (int i = 0; i < kWidth; ++i)
      adam_element(weight.at[i], gradient.at[i], first.at[i], second.at[i], factor, constants);
    store(a.weight + index * kWidth, weight);
    store(a.first + index * kWidth, first);
    store(a.second + index * kWidth, second);
    if (copy) store(copy + index * kWidth, packed<Bf16>(weight.at));
  }
  const int64_t tail = packs * kWidth + index - packs;
  if (index >= packs && tail < a.count) {
    float weight = load_one(a.weight + tail), first = load_one(a.first + tail), second = load_one(a.second + tail);
    adam_element(weight, load_one(a.gradient + tail), first, second, factor, constants);
    store_one(a.weight + tail, weight);
    store_one(a.first + tail, first);
    store_one(a.second + tail, second);
    if (copy) store_one(copy + tail, narrow<Bf16>(weight));
  }
}

}  // namespace

void run(const AdamStep& a, CUstream_st* stream) {
  if (a.count == 0) return;
  const bool aligned = in_packs(KernelType::fp32, 0, {a.weight, a.gradient, a.first, a.second}) &&
                       reinterpret_cast<uintptr_t>(a.copy) % sizeof(Pack<Bf16, kWidth>) == 0;
  const int64_t packs = aligned ? a.count / kWidth : 0;
  launch("adam", adam_kernel, dim3(blocks_for(packs + (a.count - packs * kWidth), kThreads)), dim3(kThreads), stream, a,
         packs);
}

}  // namespace TITAN_KERNEL_SPACE
}  // namespace titan
