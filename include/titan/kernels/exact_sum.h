// The exact sum of squares of fp32 or bf16 numbers: a fixed-point integer with a bit for every power of two that the
// sum can contain, stored as int64 limbs. Integer addition is associative, so the result is independent of threads,
// sharding and ranks. Layout and arithmetic for host and device; no tensors, no formatting library (nvcc compiles
// this).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "titan/kernels/elements.h"

#ifdef __CUDACC__
#define TITAN_HOST_DEVICE __host__ __device__
#else
#define TITAN_HOST_DEVICE
#endif

namespace titan {

/// Every square is a multiple of 2^-298, the square of the smallest subnormal.
constexpr int kExactLowest = -298;
/// Limb i counts multiples of 2^(32 i - 298). A square is below 2^256 and 2^40 of them below 2^296, which fits limb 18.
constexpr int kExactLimbs = 20;
/// After the limbs: the counts of infinities and of NaNs, which are in no limb.
constexpr int kExactInfinities = kExactLimbs;
constexpr int kExactNans = kExactLimbs + 1;
constexpr int kExactSlots = kExactLimbs + 2;

/// A grid of multiples of 2^exponent for splitting doubles: (x + shift) - shift is the multiple nearest to x, and the
/// remainder is exact too.
struct ExactGrid {
  int exponent;
  double shift;
  double inverse;  // 2^-exponent
};

/// 2^exponent, for exponents of normal numbers.
TITAN_HOST_DEVICE inline double power_of_two(int exponent) {
  const uint64_t bits = static_cast<uint64_t>(exponent + 1023) << 52;
  double power;
  memcpy(&power, &bits, sizeof(power));
  return power;
}

/// The finest grid on which 2^`log2_count` numbers of absolute value at most `largest` add up in a double without
/// rounding: sums stay within 2^53 multiples. log2_count must be at least 2, so that x + shift stays in the binade of
/// `shift`.
TITAN_HOST_DEVICE inline ExactGrid exact_grid(double largest, int log2_count) {
  uint64_t bits;
  memcpy(&bits, &largest, sizeof(bits));
  // largest < 2^above. The exponent's bits give it exactly, with no call that devices and hosts might round
  // differently.
  const int above = static_cast<int>(bits >> 52 & 0x7ff) - 1022;
  const int fitting = above + log2_count - 53;
  const int exponent = fitting > kExactLowest ? fitting : kExactLowest;
  return {exponent, 1.5 * power_of_two(exponent + 52), power_of_two(-exponent)};
}

/// Adds multiple * 2^exponent, with |multiple| < 2^62 and exponent >= kExactLowest, by at most three calls add(limb,
/// amount) with |amount| < 2^32.
template <class Add>
TITAN_HOST_DEVICE inline void exact_add(int64_t multiple, int exponent, Add add) {
  const int bit = exponent - kExactLowest;
  const int limb = bit / 32;
  // multiple = high * 2^32 + low; each half is shifted within 64 bits.
  const uint64_t low = static_cast<uint64_t>(multiple & 0xffffffff) << (bit % 32);
  const int64_t high = ((multiple >> 32) << (bit % 32)) + static_cast<int64_t>(low >> 32);
  add(limb, static_cast<int64_t>(low & 0xffffffff));
  add(limb + 1, high & 0xffffffff);
  add(limb + 2, high >> 32);
}

/// Carries the bits above 32 of each limb into the next; the value is unchanged. Normalised limbs are below 2^32, so a
/// sum over up to 2^31 ranks (or threads, or parameters) cannot overflow.
TITAN_HOST_DEVICE inline void exact_carry(int64_t* slots) {
  for (int i = 0; i + 1 < kExactLimbs; ++i) {
    slots[i + 1] += slots[i] >> 32;
    slots[i] &= 0xffffffff;
  }
}

/// The double nearest to the sum (ties to even), which is not negative; the limbs need not be normalised. NaN or
/// infinity if one was counted.
TITAN_HOST_DEVICE inline double exact_value(const int64_t* slots) {
  if (slots[kExactNans] != 0) return NAN;
  if (slots[kExactInfinities] != 0) return INFINITY;
  int64_t limbs[kExactLimbs];
  for (int i = 0; i < kExactLimbs; ++i) limbs[i] = slots[i];
  exact_carry(limbs);
  int top = kExactLimbs - 1;
  while (top >= 0 && limbs[top] == 0) --top;
  if (top < 0) return 0;
  // The 64 leading bits of the sum; any bits below them are folded into the last one (sticky bit).
  const auto limb = [&](int i) { return i < 0 ? uint64_t{0} : static_cast<uint64_t>(limbs[i]); };
  uint64_t leading = limb(top) << 32 | limb(top - 1);
  uint64_t below = limb(top - 2) << 32;
  int exponent = 32 * (top - 1) + kExactLowest;
  for (; leading >> 63 == 0; --exponent) {
    leading = leading << 1 | below >> 63;
    below <<= 1;
  }
  for (int i = top - 3; i >= 0; --i) below |= limb(i);
  return ldexp(static_cast<double>(leading | (below != 0 ? 1 : 0)), exponent);
}

/// Adds the squares of `count` contiguous numbers to kExactSlots slots, initially zero. The limbs are sums of one
/// normalised limb per block, so a carry must follow.
struct ExactSquares {
  const void* values = nullptr;  // of `type`
  int64_t count = 0;
  int64_t* slots = nullptr;
  int64_t most_blocks = 0;  // 0: as many as run at once; the number does not change the bits
  KernelType type = KernelType::fp32;
};

/// Reads every number once; the slots receive atomic integer additions, whose order does not matter.
constexpr KernelTraffic traffic(const ExactSquares& a) { return {a.count * bytes_of(a.type), 0, 0}; }

}  // namespace titan
