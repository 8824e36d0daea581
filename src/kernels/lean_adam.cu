#include "titan/kernels/lean_adam.h"

#include "launchers.h"

namespace titan {
inline namespace TITAN_KERNEL_SPACE {
namespace {

constexpr int kThreads = 256;

template <class T>
__device__ __forceinline__ T by_chance(float value, uint32_t chance);
template <>
__device__ __forceinline__ float by_chance<float>(float value, uint32_t) {
  return value;
}
template <>
__device__ __forceinline__ Bf16 by_chance<Bf16>(float value, uint32_t chance) {
  return {static_cast<uint16_t>(round_by_chance(bits_of(value), chance))};
}

template <class Weight, class Moment>
__device__ __forceinline__ void lean_element(Weight& weight, float gradient, Moment& first, Moment& second, float clip,
                                             const AdamConstants& c, const RoundingChances& chances) {
  const float before = widen(weight);
  const float g = gradient * clip + c.coupled * before;
  const float m = c.beta1 * widen(first) + (1 - c.beta1) * g;
  const float v = c.beta2 * widen(second) + (1 - c.beta2) * g * g;
  const float w = before * c.decay - c.step_size * m / (sqrtf(v) * c.root_scale + c.epsilon);
  first = by_chance<Moment>(m, chances.of(KeptNumber::first_moment));
  second = by_chance<Moment>(v, chances.of(KeptNumber::second_moment));
  weight = by_chance<Weight>(w, chances.of(KeptNumber::weight));
}

// A thread takes two elements that share a block of chances: ten rounds of integer products for 32 bytes of memory, so
// that bandwidth still decides, and a warp's accesses are whole lines (128 bytes of bf16, 256 of fp32). Pairs exist
// where runs begin with an even element of the tensor and have an even length, and where memory is aligned to pairs;
// elsewhere, and for the last element of an odd count, a thread takes one element.
template <class Weight, class Moment>
__global__ void lean_adam_kernel(LeanAdamStep a, int64_t pairs) {
  if (load_shared_word(a.skip) != 0) return;
  const float clip = load_shared_word(a.clip);
  auto* weight = static_cast<Weight*>(a.weight);
  auto* first = static_cast<Moment*>(a.first);
  auto* second = static_cast<Moment*>(a.second);
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index < pairs) {
    const int64_t at = 2 * index;
    Pack<Weight, 2> w = load<2>(weight + at);
    const Pack<float, 2> g = load<2>(a.gradient + at);
    Pack<Moment, 2> m = load<2>(first + at), v = load<2>(second + at);
    const RoundingPairChances chances = rounding_pair_chances(a.key, a.place.index(at));
    lean_element(w.at[0], g.at[0], m.at[0], v.at[0], clip, a.constants, chances.even);
    lean_element(w.at[1], g.at[1], m.at[1], v.at[1], clip, a.constants, chances.odd);
    store(weight + at, w);
    store(first + at, m);
    store(second + at, v);
  }
  const int64_t tail = 2 * pairs + index - pairs;
  if (index >= pairs && tail < a.count) {
    Weight w = load_one(weight + tail);
    Moment m = load_one(first + tail), v = load_one(second + tail);
    lean_element(w, load_one(a.gradient + tail), m, v, clip, a.constants, rounding_chances(a.key, a.place.index(tail)));
    store_one(weight + tail, w);
    store_one(first + tail, m);
    store_one(second + tail, v);
  }
}

__global__ void round_kernel(RoundByChance a) {
  if (load_shared_word(a.skip) != 0) return;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= a.count) return;
  const uint32_t chance = rounding_chances(a.key, a.place.index(index)).of(a.number);
  store_one(static_cast<Bf16*>(a.target) + index, by_chance<Bf16>(load_one(a.values + index), chance));
}

bool aligned_to(const void* pointer, int64_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

int64_t pairs_of(const LeanAdamStep& a) {
  const RoundingPlace& place = a.place;
  const bool even_runs = place.run >= a.count || (place.run % 2 == 0 && place.stride % 2 == 0);
  const bool aligned = aligned_to(a.weight, 2 * bytes_of(a.weight_type)) && aligned_to(a.gradient, 8) &&
                       aligned_to(a.first, 2 * bytes_of(a.moment_type)) &&
                       aligned_to(a.second, 2 * bytes_of(a.moment_type));
  return place.first % 2 == 0 && even_runs && aligned ? a.count / 2 : 0;
}

}  // namespace

void run(const LeanAdamStep& a, CUstream_st* stream) {
  if (a.count == 0) return;
  const int64_t pairs = pairs_of(a);
  with_type(a.weight_type, [&](auto weight) {
    with_type(a.moment_type, [&](auto moment) {
      launch("lean_adam", lean_adam_kernel<decltype(weight), decltype(moment)>,
             dim3(blocks_for(a.count - pairs, kThreads)), dim3(kThreads), stream, a, pairs);
    });
  });
}

void run(const RoundByChance& a, CUstream_st* stream) {
  if (a.count == 0) return;
  launch("round", round_kernel, dim3(blocks_for(a.count, kThreads)), dim3(kThreads), stream, a);
}

}  // namespace TITAN_KERNEL_SPACE
}  // namespace titan
