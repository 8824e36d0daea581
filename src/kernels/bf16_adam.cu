#include "titan/kernels/bf16_adam.h"

#include <math.h>

#include <type_traits>

#include "bias_correction.h"
#include "block.h"
#include "launchers.h"

namespace titan {
inline namespace TITAN_KERNEL_SPACE {
namespace {

// The size of blocks is that of adam.cu. Random bits depend on the element alone, so another number would not change a
// result.
constexpr int kThreads = 256;
constexpr int kWide = 4;  // elements per thread if runs and alignment allow; else 2, else 1

template <class T>
__device__ __forceinline__ T round_to(float value, uint32_t random);
template <>
__device__ __forceinline__ float round_to<float>(float value, uint32_t) {
  return value;
}
template <>
__device__ __forceinline__ Bf16 round_to<Bf16>(float value, uint32_t random) {
  return {static_cast<uint16_t>(round_stochastically(bits_of(value), random))};
}

__device__ __forceinline__ uint32_t upper_halves(uint32_t first, uint32_t second) {
#ifdef __CUDACC__
  return __byte_perm(first, second, 0x7632);
#else
  return first >> 16 | (second & 0xFFFF0000);
#endif
}

/// Stores `numbers` as they are kept, and returns them so.
template <int kWidth>
__device__ __forceinline__ Pack<float, kWidth> put(float* to, const float (&numbers)[kWidth],
                                                   const RoundingBits (&)[kWidth], KeptNumber) {
  Pack<float, kWidth> pack;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) pack.at[i] = numbers[i];
  store(to, pack);
  return pack;
}
template <int kWidth>
__device__ __forceinline__ Pack<Bf16, kWidth> put(Bf16* to, const float (&numbers)[kWidth],
                                                  const RoundingBits (&random_bits)[kWidth], KeptNumber number) {
  Pack<uint32_t, kWidth / 2> words;
#pragma unroll
  for (int i = 0; i < kWidth; i += 2) {
    words.at[i / 2] = upper_halves(round_up_stochastically(bits_of(numbers[i]), random_bits[i].of(number)),
                                   round_up_stochastically(bits_of(numbers[i + 1]), random_bits[i + 1].of(number)));
  }
  store(reinterpret_cast<uint32_t*>(to), words);
  Pack<Bf16, kWidth> pack;
  memcpy(&pack, &words, sizeof(pack));
  return pack;
}

/// For kWidth consecutive elements of the tensor, starting at element `place`, which is even.
template <int kWidth>
__device__ __forceinline__ void take_random_bits(const RoundingKey& key, int64_t place,
                                                 RoundingBits (&random_bits)[kWidth]) {
#pragma unroll
  for (int i = 0; i < kWidth; i += 2) {
    const RoundingPairBits pair = rounding_pair_bits(key, place + i);
    random_bits[i] = pair.even;
    random_bits[i + 1] = pair.odd;
  }
}

/// IEEE 754 roots and quotients for any numbers.
struct AnyNumbers {
  __device__ __forceinline__ float root(float x) { return sqrtf(x); }
  __device__ __forceinline__ float quotient(float a, float b) { return a / b; }
};

__device__ __forceinline__ float fused(float a, float b, float c) {  // a·b + c, rounded once
#ifdef __CUDACC__
  return __fmaf_rn(a, b, c);
#else
  return fmaf(a, b, c);
#endif
}
#ifndef __CUDACC__
/// Deviates from `exact` by as much as the GPU's instruction may, in either direction, so that host tests cover the
/// correction step.
inline float nearby(float exact, float x, uint32_t ulps) {
  return float_of(bits_of(exact) + (bits_of(x) * 0x9E3779B1u >> 16) % (2 * ulps + 1) - ulps);
}
#endif
__device__ __forceinline__ float rough_inverse_root(float x) {
#ifdef __CUDACC__
  float result;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return nearby(1 / sqrtf(x), x, 2);
#endif
}
__device__ __forceinline__ float rough_inverse(float x) {
#ifdef __CUDACC__
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return nearby(1 / x, x, 1);
#endif
}

/// The same with the sequences that nvcc emits for sqrtf and division if all intermediate results are normal. nvcc
/// branches on that in every operation; here one check of `are_ordinary` covers several elements.
struct OrdinaryNumbers {
  bool are_ordinary = true;

  __device__ __forceinline__ float root(float x) {
    within(x, 0x1p-101f, 0x1p100f);
    const float inverse = rough_inverse_root(x);
    const float root = x * inverse;
    return fused(fused(-root, root, x), 0.5f * inverse, root);
  }

  __device__ __forceinline__ float quotient(float a, float b) {
    within(a, 0x1p-90f, 0x1p60f);
    within(b, 0x1p-60f, 0x1p30f);
    const float rough = rough_inverse(b);
    const float inverse = fused(rough, fused(-b, rough, 1), rough);
    const float quotient = a * inverse;
    return fused(inverse, fused(-b, quotient, a), quotient);
  }

 private:
  /// least <= |x| < limit; doubling the bits drops the sign.
  __device__ __forceinline__ void within(float x, float least, float limit) {
    are_ordinary &= 2 * bits_of(x) - 2 * bits_of(least) < 2 * (bits_of(limit) - bits_of(least));
  }
};

template <class Arithmetic>
__device__ __forceinline__ void bf16_element(float& weight, float gradient, float& first, float& second, float clip,
                                             const AdamConstants& c, Arithmetic& arithmetic) {
  const float g = gradient * clip + c.coupled * weight;
  first = c.beta1 * first + (1 - c.beta1) * g;
  second = c.beta2 * second + (1 - c.beta2) * g * g;
  const float scale = arithmetic.root(second) * c.root_scale + c.epsilon;
  weight = weight * c.decay - arithmetic.quotient(c.step_size * first, scale);
}

template <class Weight, class Moment, class Gradient>
__device__ __forceinline__ void step_one(const Bf16AdamStep& a, int64_t at, float clip, uint32_t& largest) {
  Weight& kept_weight = static_cast<Weight*>(a.weight)[at];
  Moment& kept_first = static_cast<Moment*>(a.first)[at];
  Moment& kept_second = static_cast<Moment*>(a.second)[at];
  const float gradient = widen(load_one(static_cast<const Gradient*>(a.gradient) + at));
  float weight = widen(load_one(&kept_weight)), first = widen(load_one(&kept_first));
  float second = widen(load_one(&kept_second));
  AnyNumbers arithmetic;
  bf16_element(weight, gradient, first, second, clip, a.constants, arithmetic);
  const RoundingBits random_bits = rounding_bits(a.key, a.place.index(at));
  const Weight kept = round_to<Weight>(weight, random_bits.of(KeptNumber::weight));
  store_one(&kept_weight, kept);
  float multiplied = widen(kept);  // what products read
  if constexpr (std::is_same_v<Weight, float>) {
    if (a.copy) {
      const Bf16 copied = narrow<Bf16>(weight);
      store_one(static_cast<Bf16*>(a.copy) + at, copied);
      multiplied = widen(copied);
    }
  }
  largest = larger(largest, multiplied);
  store_one(&kept_first, round_to<Moment>(first, random_bits.of(KeptNumber::first_moment)));
  store_one(&kept_second, round_to<Moment>(second, random_bits.of(KeptNumber::second_moment)));
}

/// Steps elements [at, at + kWidth), of which the first is an even element of the tensor. Returns false if a value is
/// not ordinary (zero, tiny, huge, infinite or NaN): they must then be stepped one by one.
template <class Weight, class Moment, class Gradient, int kWidth>
__device__ __forceinline__ bool step_pack(const Bf16AdamStep& a, int64_t at, float clip, uint32_t& largest) {
  auto* kept_weight = static_cast<Weight*>(a.weight) + at;
  auto* kept_first = static_cast<Moment*>(a.first) + at;
  auto* kept_second = static_cast<Moment*>(a.second) + at;
  float weight[kWidth], gradient[kWidth], first[kWidth], second[kWidth];
  unpack(load<kWidth>(kept_weight), weight);
  unpack(load<kWidth>(static_cast<const Gradient*>(a.gradient) + at), gradient);
  unpack(load<kWidth>(kept_first), first);
  unpack(load<kWidth>(kept_second), second);
  RoundingBits random_bits[kWidth];
  take_random_bits(a.key, a.place.index(at), random_bits);
  OrdinaryNumbers arithmetic;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    bf16_element(weight[i], gradient[i], first[i], second[i], clip, a.constants, arithmetic);
    arithmetic.are_ordinary &= weight[i] == weight[i];
  }
  if (!arithmetic.are_ordinary) return false;
  const Pack<Weight, kWidth> kept = put(kept_weight, weight, random_bits, KeptNumber::weight);
  const bool copies = std::is_same_v<Weight, float> && a.copy != nullptr;
  if (a.largest != nullptr && !copies) largest = larger(largest, kept);
  if constexpr (std::is_same_v<Weight, float>) {
    if (copies) {
      const Pack<Bf16, kWidth> copied = packed<Bf16>(weight);
      store(static_cast<Bf16*>(a.copy) + at, copied);
      if (a.largest != nullptr) largest = larger(largest, copied);
    }
  }
  put(kept_first, first, random_bits, KeptNumber::first_moment);
  put(kept_second, second, random_bits, KeptNumber::second_moment);
  return true;
}

// Barely memory-bound: 16 bytes (14 with a bf16 gradient) and 80 instructions per element, a fifth of them for random
// bits. A thread handles kWidth consecutive elements, of which each pair shares a Philox block; a warp's accesses are
// whole lines (256 bytes of bf16, 512 of fp32). Elements that fill no pack get a thread each. An amax takes two
// instructions per element more, and a barrier; without one a thread branches past them twice.
template <class Weight, class Moment, class Gradient, int kWidth>
__global__ void __launch_bounds__(kThreads) bf16_adam_kernel(Bf16AdamStep a, int64_t packs) {
  if (load_shared_word(a.skip) != 0) return;
  const float clip = load_shared_word(a.clip);
  a.constants = corrected(a.constants, a.corrections);
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  uint32_t largest = 0;
  if (index < packs) {
    if (!step_pack<Weight, Moment, Gradient, kWidth>(a, kWidth * index, clip, largest)) {
#pragma unroll 1
      for (int i = 0; i < kWidth; ++i) step_one<Weight, Moment, Gradient>(a, kWidth * index + i, clip, largest);
    }
  } else {
    const int64_t tail = (kWidth - 1) * packs + index;
    if (tail < a.count) step_one<Weight, Moment, Gradient>(a, tail, clip, largest);
  }
  if (a.largest != nullptr) raise_amax(largest, a.largest);
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads) round_kernel(RoundStochastically a, int64_t packs) {
  if (load_shared_word(a.skip) != 0) return;
  auto* target = static_cast<Bf16*>(a.target);
  const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index < packs) {
    const int64_t at = kWidth * index;
    const Pack<float, kWidth> values = load<kWidth>(a.values + at);
    RoundingBits random_bits[kWidth];
    take_random_bits(a.key, a.place.index(at), random_bits);
    Pack<Bf16, kWidth> rounded;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) rounded.at[i] = round_to<Bf16>(values.at[i], random_bits[i].of(a.number));
    return store(target + at, rounded);
  }
  const int64_t tail = (kWidth - 1) * packs + index;
  if (tail >= a.count) return;
  const uint32_t random = rounding_bits(a.key, a.place.index(tail)).of(a.number);
  store_one(target + tail, round_to<Bf16>(load_one(a.values + tail), random));
}

bool aligned_to(const void* pointer, int64_t bytes) { return reinterpret_cast<uintptr_t>(pointer) % bytes == 0; }

/// True if each pack of `width` elements is within one run and starts at an even element of the tensor.
bool packs_fit(const RoundingPlace& place, int64_t count, int64_t width) {
  return place.first % 2 == 0 && (place.run >= count || (place.run % width == 0 && place.stride % 2 == 0));
}

/// Also requires aligned arrays.
bool packs_fit(const Bf16AdamStep& a, int64_t width) {
  return packs_fit(a.place, a.count, width) && aligned_to(a.weight, width * bytes_of(a.weight_type)) &&
         aligned_to(a.gradient, width * bytes_of(a.gradient_type)) &&
         aligned_to(a.first, width * bytes_of(a.moment_type)) &&
         aligned_to(a.second, width * bytes_of(a.moment_type)) && aligned_to(a.copy, width * 2);
}
bool packs_fit(const RoundStochastically& a, int64_t width) {
  return packs_fit(a.place, a.count, width) && aligned_to(a.values, width * 4) && aligned_to(a.target, width * 2);
}

template <class Weight, class Moment, class Gradient, int kWidth>
void launch_step(const Bf16AdamStep& a, int64_t packs, CUstream_st* stream) {
  launch("bf16_adam", bf16_adam_kernel<Weight, Moment, Gradient, kWidth>,
         dim3(blocks_for(a.count - packs * (kWidth - 1), kThreads)), dim3(kThreads), stream, a, packs);
}

}  // namespace

void run(const Bf16AdamStep& a, CUstream_st* stream) {
  if (a.count == 0) return;
  with_type(a.weight_type, [&](auto weight) {
    with_type(a.moment_type, [&](auto moment) {
      with_type(a.gradient_type, [&](auto gradient) {
        using Weight = decltype(weight);
        using Moment = decltype(moment);
        using Gradient = decltype(gradient);
        packs_fit(a, kWide) ? launch_step<Weight, Moment, Gradient, kWide>(a, a.count / kWide, stream)
                            : launch_step<Weight, Moment, Gradient, 2>(a, packs_fit(a, 2) ? a.count / 2 : 0, stream);
      });
    });
  });
}

void run(const RoundStochastically& a, CUstream_st* stream) {
  if (a.count == 0) return;
  const int64_t packs = packs_fit(a, kWide) ? a.count / kWide : 0;
  launch("round", round_kernel<kWide>, dim3(blocks_for(a.count - packs * (kWide - 1), kThreads)), dim3(kThreads),
         stream, a, packs);
}

}  // namespace TITAN_KERNEL_SPACE
}  // namespace titan
