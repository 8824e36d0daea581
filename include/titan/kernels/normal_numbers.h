// Normal numbers as a pure function of (seed, stream, index), with the same bits on GPU and host: Box & Muller, 1958,
// over Philox. Uses only correctly rounded IEEE 754 operations without contraction, because logarithms and cosines
// differ between libraries in the last bit. For host and device; no tensors.
#pragma once

#include <cmath>
#include <cstdint>

#include "titan/base/philox.h"
#include "titan/kernels/elements.h"
#include "titan/kernels/stochastic_rounding.h"

namespace titan {

/// The distribution: deviation · N(0, 1), redrawn outside [lower, upper] if `truncated`.
struct NormalNumbers {
  uint64_t seed = 0;
  uint64_t stream = 0;  // derived from the parameter's name
  double deviation = 1;
  bool truncated = false;
  double lower = 0;
  double upper = 0;
};

namespace exact {

#ifdef __CUDA_ARCH__
TITAN_HOST_DEVICE inline double times(double a, double b) { return __dmul_rn(a, b); }
TITAN_HOST_DEVICE inline double plus(double a, double b) { return __dadd_rn(a, b); }
#else
TITAN_HOST_DEVICE inline double times(double a, double b) { return a * b; }
TITAN_HOST_DEVICE inline double plus(double a, double b) { return a + b; }
#endif

/// Horner's rule: c[0] + z·(c[1] + z·(…)).
template <int N>
TITAN_HOST_DEVICE inline double polynomial(double z, const double (&c)[N]) {
  double sum = c[N - 1];
  for (int i = N - 2; i >= 0; --i) sum = plus(c[i], times(z, sum));
  return sum;
}

/// ln u for u in (0, 1): with u = m·2^e and s = (m − 1) / (m + 1), e·ln 2 + 2·(s + s³/3 + s⁵/5 + …), |s| < 0.172.
TITAN_HOST_DEVICE inline double logarithm(double u) {
  constexpr double kHalfRoot = 0.70710678118654752440;  // √½: m in [√½, √2) keeps |s| small on both sides of 1
  // ln 2 in two parts. The first has 33 bits, so that its product with an exponent, which has six, is exact.
  constexpr double kLn2High = 0x1.62e42fee00000p-1, kLn2Low = 0x1.a39ef35793c76p-33;
  constexpr double kOdd[] = {1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11, 1.0 / 13,
                             1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21, 1.0 / 23, 1.0 / 25};
  int exponent = 0;
  double m = u;
  // At most 33 iterations: the smallest u is 2^-33.
  while (m < kHalfRoot) m = times(m, 2), --exponent;
  const double f = plus(m, -1);
  const double s = f / plus(f, 2);
  const double z = times(s, s);
  const double twice = times(2, s);
  const double tail = times(twice, times(z, polynomial(z, kOdd)));
  return plus(times(exponent, kLn2High), plus(twice, plus(tail, times(exponent, kLn2Low))));
}

struct CosineAndSine {
  double cosine, sine;
};

/// For an angle in [0, 2π], reduced to the nearest multiple of π/2.
TITAN_HOST_DEVICE inline CosineAndSine cosine_and_sine(double angle) {
  // π/2 in two parts. The first has 33 bits, so that its product with a number of quarters is exact: the subtraction
  // below may cancel most bits of `angle`, and the error of a rounded product would be left.
  constexpr double kHalfPiHigh = 0x1.921fb54400000p+0, kHalfPiLow = 0x1.0b4611a626331p-34;
  constexpr double kCosine[] = {1.0,
                                -1.0 / 2,
                                1.0 / 24,
                                -1.0 / 720,
                                1.0 / 40320,
                                -1.0 / 3628800,
                                1.0 / 479001600,
                                -1.0 / 87178291200,
                                1.0 / 20922789888000};
  constexpr double kSine[] = {-1.0 / 6,        1.0 / 120,        -1.0 / 5040,          1.0 / 362880,
                              -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000};
  constexpr double kTwoOverPi = 0.63661977236758134308;
  const int quarter = static_cast<int>(plus(times(angle, kTwoOverPi), 0.5));
  const double x = plus(plus(angle, -times(quarter, kHalfPiHigh)), -times(quarter, kHalfPiLow));
  const double z = times(x, x);
  const double cosine = polynomial(z, kCosine);
  const double sine = plus(x, times(x, times(z, polynomial(z, kSine))));
  switch (quarter % 4) {
    case 0:
      return {cosine, sine};
    case 1:
      return {-sine, cosine};
    case 2:
      return {-cosine, -sine};
    default:
      return {sine, -cosine};
  }
}

/// Uniform in (0, 1), bounds excluded, so that logarithms are finite.
TITAN_HOST_DEVICE inline double unit_interval(uint32_t bits) {
  return times(plus(static_cast<double>(bits), 0.5), 0x1p-32);
}

}  // namespace exact

/// Element `index` of N(0, 1); elements 2n and 2n + 1 share block n of the stream.
TITAN_HOST_DEVICE inline double standard_normal(uint64_t seed, uint64_t stream, int64_t index) {
  const auto block = static_cast<uint64_t>(index) / 2;
  auto word0 = static_cast<uint32_t>(block);
  auto word1 = static_cast<uint32_t>(block >> 32);
  auto word2 = static_cast<uint32_t>(stream);
  auto word3 = static_cast<uint32_t>(stream >> 32);
  philox_words(word0, word1, word2, word3, seed);
  const double radius = sqrt(exact::times(-2, exact::logarithm(exact::unit_interval(word0))));
  const exact::CosineAndSine turned =
      exact::cosine_and_sine(exact::times(6.283185307179586, exact::unit_interval(word1)));
  return exact::times(radius, index % 2 == 0 ? turned.cosine : turned.sine);
}

TITAN_HOST_DEVICE inline double normal_number(const NormalNumbers& of, int64_t index) {
  double value = exact::times(standard_normal(of.seed, of.stream, index), of.deviation);
  if (!of.truncated) return value;
  // Redraws use other keys of the same stream. They are 2⁶⁴ ÷ the golden ratio apart, so a redraw is no number of a run
  // whose seed is near this one's. The bounds keep at least a third of the mass for every model here.
  constexpr uint64_t kNextDraw = 0x9E3779B97F4A7C15;
  for (uint64_t seed = of.seed; value < of.lower || value > of.upper;) {
    seed += kNextDraw;
    value = exact::times(standard_normal(seed, of.stream, index), of.deviation);
  }
  return value;
}

/// Element i of `values` becomes element place.index(i), rounded to fp32 and then to `type`.
struct NormalFill {
  KernelType type = KernelType::fp32;
  int64_t count = 0;
  NormalNumbers of{};
  RoundingPlace place{};
  void* values = nullptr;
};

constexpr KernelTraffic traffic(const NormalFill& a) { return {0, a.count * bytes_of(a.type), 0}; }

}  // namespace titan
