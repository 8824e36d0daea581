#include "cpu_swiglu.h"

#include "cpu_tiles.h"

namespace titan {
namespace {

constexpr int64_t kChunk = 512;  // numbers in fp32 at a time: they stay in the first-level cache

/// A piece of an array in fp32, zeros behind its end.
struct Chunk {
  alignas(64) float values[kChunk];

  template <class T>
  TITAN_INLINE void load(const T* from, int64_t count) {
    load_tile(values, kChunk, from, 0, 1, count, 1);
  }
  template <class T>
  TITAN_INLINE void store(T* to, int64_t count) const {
    store_tile(to, 0, values, kChunk, 1, count, 1.0f);
  }
};

/// s = 1 / (1 + e^−x). The exponent is bounded so that far below zero a small number remains instead of 0·∞.
template <class S>
TITAN_INLINE void sigmoid(typename S::Vector& s, const typename S::Vector& x) {
  s = x * -kLog2e;
  s = s > 126.0f ? typename S::Vector{} + 126.0f : s;
  power_of_two<S>(s);
  s = 1.0f / (1.0f + s);
}

template <class S, class T>
TITAN_INLINE void forward(T* out, const T* gate, const T* up, int64_t count) {
  Chunk g, u;
  for (int64_t at = 0; at < count; at += kChunk) {
    const int64_t size = std::min(kChunk, count - at);
    g.load(gate + at, size);
    u.load(up + at, size);
    for (int64_t i = 0; i < size; i += S::kLanes) {
      typename S::Vector& x = vector_at<S>(g.values + i);
      typename S::Vector s;
      sigmoid<S>(s, x);
      x *= s * vector_at<S>(u.values + i);
    }
    g.store(out + at, size);
  }
}

template <class S, class T>
TITAN_INLINE void backward(T* d_gate, T* d_up, const T* d_out, const T* gate, const T* up, int64_t count) {
  Chunk g, u, d;
  for (int64_t at = 0; at < count; at += kChunk) {
    const int64_t size = std::min(kChunk, count - at);
    g.load(gate + at, size);
    u.load(up + at, size);
    d.load(d_out + at, size);
    for (int64_t i = 0; i < size; i += S::kLanes) {
      typename S::Vector& x = vector_at<S>(g.values + i);
      typename S::Vector& y = vector_at<S>(u.values + i);
      const typename S::Vector dy = vector_at<S>(d.values + i);
      typename S::Vector s;
      sigmoid<S>(s, x);
      const typename S::Vector d_x = dy * y * (s * (1.0f + x * (1.0f - s)));
      y = dy * (x * s);
      x = d_x;
    }
    g.store(d_gate + at, size);
    u.store(d_up + at, size);
  }
}

}  // namespace

TITAN_DEFINE_SIMD(cpu_swiglu, forward, (float* out, const float* gate, const float* up, int64_t count),
                  (out, gate, up, count))
TITAN_DEFINE_SIMD(cpu_swiglu, forward,
                  (BFloat16Bits * out, const BFloat16Bits* gate, const BFloat16Bits* up, int64_t count),
                  (out, gate, up, count))
TITAN_DEFINE_SIMD(cpu_swiglu_backward, backward,
                  (float* d_gate, float* d_up, const float* d, const float* gate, const float* up, int64_t count),
                  (d_gate, d_up, d, gate, up, count))
TITAN_DEFINE_SIMD(cpu_swiglu_backward, backward,
                  (BFloat16Bits * d_gate, BFloat16Bits* d_up, const BFloat16Bits* d, const BFloat16Bits* gate,
                   const BFloat16Bits* up, int64_t count),
                  (d_gate, d_up, d, gate, up, count))

}  // namespace titan
