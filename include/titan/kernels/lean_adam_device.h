// The kernels of lean_adam.h as plain CUDA C++ without a launch, so that a test can also run them on the host
// (tests/support/cuda_on_host.h). Need CUDA's built-in names; launched by src/kernels/lean_adam.cu.
#pragma once

#include <cstdint>
#include <cstring>

#include "titan/kernels/adam.h"
#include "titan/kernels/stochastic_rounding.h"

namespace titan {

__device__ inline float lean_load(float value) { return value; }
__device__ inline float lean_load(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  memcpy(&value, &wide, sizeof(value));
  return value;
}
__device__ inline void lean_store(float value, uint32_t, float& out) { out = value; }
__device__ inline void lean_store(float value, uint32_t chance, uint16_t& out) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  out = static_cast<uint16_t>(round_by_chance(bits, chance));
}

template <class Weight, class Moment>
__device__ inline void lean_adam_element(Weight& weight, float gradient, Moment& first, Moment& second, float clip,
                                         const AdamConstants& c, const RoundingChances& chances) {
  const float before = lean_load(weight);
  const float g = gradient * clip + c.coupled * before;
  const float m = c.beta1 * lean_load(first) + (1 - c.beta1) * g;
  const float v = c.beta2 * lean_load(second) + (1 - c.beta2) * g * g;
  const float w = before * c.decay - c.step_size * m / (sqrtf(v) * c.root_scale + c.epsilon);
  lean_store(m, chances.of(KeptNumber::first_moment), first);
  lean_store(v, chances.of(KeptNumber::second_moment), second);
  lean_store(w, chances.of(KeptNumber::weight), weight);
}

/// Two elements that share a block of chances.
template <class T>
struct alignas(2 * sizeof(T)) LeanPair {
  T even, odd;
};

// A thread takes two elements that share a block of chances: ten rounds of integer products per block are about what
// the memory of the pair takes, and a warp's accesses are whole lines (128 bytes of bf16, 256 of fp32). Pairs exist
// where runs begin with an even element of the tensor and have an even length, and where memory is aligned to pairs;
// elsewhere, and for the last element of an odd count, a thread takes one element.
template <class Weight, class Moment>
__global__ void lean_adam_kernel(Weight* weight, const float* gradient, Moment* first, Moment* second, int64_t count,
                                 int64_t pairs, RoundingKey key, RoundingPlace place, AdamConstants constants,
                                 const float* clip, const float* skip) {
  if (*skip != 0) return;
  const float factor = *clip;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index < pairs) {
    auto w = reinterpret_cast<LeanPair<Weight>*>(weight)[index];
    const auto g = reinterpret_cast<const LeanPair<float>*>(gradient)[index];
    auto m = reinterpret_cast<LeanPair<Moment>*>(first)[index];
    auto v = reinterpret_cast<LeanPair<Moment>*>(second)[index];
    const RoundingPairChances chances = rounding_pair_chances(key, place.index(2 * index));
    lean_adam_element(w.even, g.even, m.even, v.even, factor, constants, chances.even);
    lean_adam_element(w.odd, g.odd, m.odd, v.odd, factor, constants, chances.odd);
    reinterpret_cast<LeanPair<Weight>*>(weight)[index] = w;
    reinterpret_cast<LeanPair<Moment>*>(first)[index] = m;
    reinterpret_cast<LeanPair<Moment>*>(second)[index] = v;
  }
  const int64_t tail = 2 * pairs + index - pairs;
  if (index >= pairs && tail < count) {
    lean_adam_element(weight[tail], gradient[tail], first[tail], second[tail], factor, constants,
                      rounding_chances(key, place.index(tail)));
  }
}

static __global__ void round_kernel(const float* values, uint16_t* target, int64_t count, RoundingKey key,
                                    RoundingPlace place, KeptNumber number, const float* skip) {
  if (*skip != 0) return;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= count) return;
  lean_store(values[index], rounding_chances(key, place.index(index)).of(number), target[index]);
}

}  // namespace titan
