// Shared by all kernels here: element types, packs of up to 16 bytes that are loaded and stored at once, shared arrays,
// launches. Compiled by nvcc, or for the host with tests/support/cuda_on_host.h, which counts and checks loads and
// stores. Private to src/kernels.
#pragma once

#include <cstdint>
#include <cstring>

#include "titan/kernels/elements.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "titan/kernels/launch.h"
#define TITAN_KERNEL_SPACE on_gpu
#define TITAN_SHARED(type, name, count) __shared__ type name[count]
#elif defined(TITAN_CUDA_ON_HOST)
#define TITAN_KERNEL_SPACE on_host
#define TITAN_SHARED(type, name, count) static titan::cuda_on_host::Shared<type> name(count, #name)
#define __forceinline__ inline
namespace titan {
inline int multiprocessors() { return 2; }  // of the host: any number will do
}  // namespace titan
#else
#error "kernels are compiled by nvcc, or behind tests/support/cuda_on_host.h"
#endif

namespace titan {

constexpr unsigned kWarpSize = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

inline namespace TITAN_KERNEL_SPACE {

/// The upper half of an fp32.
struct Bf16 {
  uint16_t bits;
};

__device__ __forceinline__ uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

__device__ __forceinline__ float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ float widen(Bf16 value) { return float_of(static_cast<uint32_t>(value.bits) << 16); }

/// Rounds to nearest, ties to even; NaN stays NaN.
template <class T>
__device__ __forceinline__ T narrow(float value);
template <>
__device__ __forceinline__ float narrow<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ Bf16 narrow<Bf16>(float value) {
#ifdef __CUDACC__
  return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
#else
  const uint32_t bits = bits_of(value);
  return {static_cast<uint16_t>(value != value ? 0x7fff : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
#endif
}

/// `value` after a store and a load.
template <class T>
__device__ __forceinline__ float rounded(float value) {
  return widen(narrow<T>(value));
}

/// Calls run(T{}) with the type that `type` names.
template <class Run>
void with_type(KernelType type, const Run& run) {
  type == KernelType::bf16 ? run(Bf16{}) : run(0.0f);
}

/// e^x by the hardware's exp2: a few ulps of error, more with large |x|. Results below 2^-126 are 0 on a GPU: exp2f
/// takes four instructions instead of one to keep them, which would slow down the loss over large vocabularies.
__device__ __forceinline__ float exponential(float x) {
#ifdef __CUDACC__
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.4426950408889634f));
  return result;
#else
  return exp2f(x * 1.4426950408889634f);
#endif
}

/// 1/x with an error of 1–2 ulps; 0 for |x| above 2^126. A correctly rounded division takes eight instructions.
__device__ __forceinline__ float reciprocal(float x) {
#ifdef __CUDACC__
  return __fdividef(1, x);
#else
  return 1 / x;
#endif
}

/// N adjacent elements, moved by one access.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};

template <int N, class T>
__device__ __forceinline__ Pack<T, N> load(const T* from) {
#ifdef TITAN_CUDA_ON_HOST
  cuda_on_host::note(from, sizeof(T) * N, /*writes=*/false);
#endif
  return *reinterpret_cast<const Pack<T, N>*>(from);
}

template <int N, class T>
__device__ __forceinline__ void store(T* to, const Pack<T, N>& values) {
#ifdef TITAN_CUDA_ON_HOST
  cuda_on_host::note(to, sizeof(T) * N, /*writes=*/true);
#endif
  *reinterpret_cast<Pack<T, N>*>(to) = values;
}

/// The elements of a pack. bf16 elements are halves of words and are extracted with one instruction each; for single
/// elements the GPU compiler emits two.
template <int N>
__device__ __forceinline__ void unpack(const Pack<float, N>& pack, float (&numbers)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) numbers[i] = pack.at[i];
}
template <int N>
__device__ __forceinline__ void unpack(const Pack<Bf16, N>& pack, float (&numbers)[N]) {
  if constexpr (N % 2 != 0) {
#pragma unroll
    for (int i = 0; i < N; ++i) numbers[i] = widen(pack.at[i]);
  } else {
    uint32_t words[N / 2];
    memcpy(words, &pack, sizeof(words));
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      numbers[i] = float_of(words[i / 2] << 16);
      numbers[i + 1] = float_of(words[i / 2] & 0xffff0000);
    }
  }
}

/// Elements as stored in a pack. Two bf16 are narrowed at once: a GPU narrows single ones at a quarter of the rate.
template <class T, int N>
__device__ __forceinline__ Pack<T, N> packed(const float (&numbers)[N]) {
  Pack<T, N> pack;
#ifdef __CUDACC__
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    uint32_t words[N / 2];
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(numbers[i], numbers[i + 1]);
      memcpy(&words[i / 2], &two, sizeof(two));
    }
    memcpy(&pack, words, sizeof(pack));
  } else
#endif
  {
#pragma unroll
    for (int i = 0; i < N; ++i) pack.at[i] = narrow<T>(numbers[i]);
  }
  return pack;
}

template <class T>
__device__ __forceinline__ T load_one(const T* from) {
  return load<1>(from).at[0];
}
template <class T>
__device__ __forceinline__ void store_one(T* to, T value) {
  store<1>(to, Pack<T, 1>{{value}});
}

/// A word that every thread of the block reads.
template <class T>
__device__ __forceinline__ T load_shared_word(const T* from) {
#ifdef TITAN_CUDA_ON_HOST
  cuda_on_host::note_word(from, sizeof(T));
#endif
  return *from;
}

/// Elements of type T per pack.
template <class T>
constexpr int kPackOf = static_cast<int>(kPackBytes / static_cast<int64_t>(sizeof(T)));

/// Atomic addition to a word in shared or global memory.
template <class T>
__device__ __forceinline__ void atomic_add(T& to, T amount) {
  atomicAdd(&to, amount);
}
#ifdef TITAN_CUDA_ON_HOST
template <class T>
void atomic_add(cuda_on_host::SharedElement<T> to, T amount) {
  to.add(amount);
}
#endif

/// kernel<<<grid, block, 0, stream>>>(arguments…). Throws std::runtime_error naming the kernel if the launch fails.
template <class... Parameters, class... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), dim3 grid, dim3 block, CUstream_st* stream,
            const Arguments&... arguments) {
#ifdef TITAN_CUDA_ON_HOST
  (void)name, (void)stream;
  cuda_on_host::run_grid(grid, block, [&] { kernel(arguments...); });
#else
  // In a header, clang-format would treat the angle brackets as a template's.
  // clang-format off
  kernel<<<grid, block, 0, stream>>>(arguments...);
  // clang-format on
  check_launch(name);
#endif
}

inline unsigned blocks_for(int64_t count, int64_t each) { return static_cast<unsigned>((count + each - 1) / each); }

}  // namespace TITAN_KERNEL_SPACE
}  // namespace titan
