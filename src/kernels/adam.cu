#include <cuda_runtime.h>

#include "titan/kernels/adam.h"
#include "titan/kernels/launch.h"

namespace titan {
namespace {

constexpr int kThreads = 256;
constexpr int kVector = 4;  // one 16-byte access of fp32

__device__ void adam_element(float& weight, float gradient, float& first, float& second, float clip,
                             const AdamConstants& c) {
  const float g = gradient * clip + c.coupled * weight;
  first = c.beta1 * first + (1 - c.beta1) * g;
  second = c.beta2 * second + (1 - c.beta2) * g * g;
  weight = weight * c.decay - c.step_size * first / (sqrtf(second) * c.root_scale + c.epsilon);
}

// Bandwidth decides: 28 bytes an element and about ten instructions. Each thread takes one 16-byte vector of each
// array, so a warp's accesses are whole lines; what fills no vector (all of it, where an array is not 16-byte aligned)
// goes one element a thread to the threads after the last vector.
__global__ void adam_kernel(float* __restrict__ weight, const float* __restrict__ gradient, float* __restrict__ first,
                            float* __restrict__ second, int64_t count, int64_t vectors, AdamConstants constants,
                            const float* __restrict__ clip, const float* __restrict__ skip) {
  if (*skip != 0) return;
  const float factor = *clip;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index < vectors) {
    float4 w = reinterpret_cast<float4*>(weight)[index];
    const float4 g = reinterpret_cast<const float4*>(gradient)[index];
    float4 m = reinterpret_cast<float4*>(first)[index];
    float4 v = reinterpret_cast<float4*>(second)[index];
    adam_element(w.x, g.x, m.x, v.x, factor, constants);
    adam_element(w.y, g.y, m.y, v.y, factor, constants);
    adam_element(w.z, g.z, m.z, v.z, factor, constants);
    adam_element(w.w, g.w, m.w, v.w, factor, constants);
    reinterpret_cast<float4*>(weight)[index] = w;
    reinterpret_cast<float4*>(first)[index] = m;
    reinterpret_cast<float4*>(second)[index] = v;
  }
  const int64_t tail = vectors * kVector + index - vectors;
  if (index >= vectors && tail < count) {
    adam_element(weight[tail], gradient[tail], first[tail], second[tail], factor, constants);
  }
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % sizeof(float4) == 0; }

}  // namespace

void launch_adam(float* weight, const float* gradient, float* first, float* second, int64_t count,
                 const AdamConstants& constants, const float* clip, const float* skip, CUstream_st* stream) {
  if (count == 0) return;
  const bool vectorise = aligned(weight) && aligned(gradient) && aligned(first) && aligned(second);
  const int64_t vectors = vectorise ? count / kVector : 0;
  const int64_t threads = vectors + (count - vectors * kVector);
  const auto blocks = static_cast<unsigned>((threads + kThreads - 1) / kThreads);
  adam_kernel<<<blocks, kThreads, 0, stream>>>(weight, gradient, first, second, count, vectors, constants, clip, skip);
  check_launch("adam");
}

}  // namespace titan
