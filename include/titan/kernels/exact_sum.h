// The exact sum of squares of fp32 numbers: a fixed-point integer wide enough for every bit such a sum can have, kept
// as int64 limbs. Integers add up to the same bits in any order, so neither threads, nor cuts, nor ranks change the
// result. Layout and arithmetic are here, for host and device alike; no tensors, no formatting library (nvcc compiles
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
/// Limb i counts multiples of 2^(32 i - 298). A square is below 2^256 and 2^40 of them below 2^296, which limb 18
/// holds.
constexpr int kExactLimbs = 20;
/// After the limbs: how many values were infinite, and how many were no number. They are in no limb.
constexpr int kExactInfinities = kExactLimbs;
constexpr int kExactNans = kExactLimbs + 1;
constexpr int kExactSlots = kExactLimbs + 2;

/// A grid of multiples of 2^exponent for splitting doubles: (x + shift) - shift is the multiple nearest to x, and what
/// it leaves of x is exact too.
struct ExactGrid {
  int exponent;
  double shift;
  double inverse;  // 2^-exponent
};

/// 2^exponent, of a normal number's exponent.
TITAN_HOST_DEVICE inline double power_of_two(int exponent) {
  const uint64_t bits = static_cast<uint64_t>(exponent + 1023) << 52;
  double power;
  memcpy(&power, &bits, sizeof(power));
  return power;
}

/// The finest grid on which 2^`log2_count` numbers, each at most `largest` in size, add up in a double without
/// rounding: sums stay within 2^53 multiples. log2_count must be 2 or more, so that x + shift stays in the binade of
/// `shift`.
TITAN_HOST_DEVICE inline ExactGrid exact_grid(double largest, int log2_count) {
  uint64_t bits;
  memcpy(&bits, &largest, sizeof(bits));
  const int above = static_cast<int>(bits >> 52 & 0x7ff) - 1022;  // largest < 2^above
  const int fitting = above + log2_count - 53;
  const int exponent = fitting > kExactLowest ? fitting : kExactLowest;
  return {exponent, 1.5 * power_of_two(exponent + 52), power_of_two(-exponent)};
}

/// Adds multiple * 2^exponent, with |multiple| < 2^62 and exponent >= kExactLowest, by at most three calls
/// add(limb, amount), each amount less than 2^32 in size.
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

/// Moves what exceeds 32 bits of a limb to the next, which changes no value. Limbs so normalised are below 2^32, so the
/// sum over up to 2^31 ranks (or threads, or parameters) cannot overflow.
TITAN_HOST_DEVICE inline void exact_carry(int64_t* slots) {
  for (int i = 0; i + 1 < kExactLimbs; ++i) {
    slots[i + 1] += slots[i] >> 32;
    slots[i] &= 0xffffffff;
  }
}

/// The double nearest to the sum (ties to even), which is not negative, whether the limbs are normalised or not; NaN or
/// infinity when one was counted.
TITAN_HOST_DEVICE inline double exact_value(const int64_t* slots) {
  if (slots[kExactNans] != 0) return NAN;
  if (slots[kExactInfinities] != 0) return INFINITY;
  int64_t limbs[kExactLimbs];
  for (int i = 0; i < kExactLimbs; ++i) limbs[i] = slots[i];
  exact_carry(limbs);
  int top = kExactLimbs - 1;
  while (top >= 0 && limbs[top] == 0) --top;
  if (top < 0) return 0;
  // The 64 leading bits of the sum; what is below them only matters by being there, so it becomes their last bit.
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

/// Adds the squares of `count` contiguous numbers to kExactSlots numbers, zero at first; the limbs are left as sums of
/// a normalised one for each block, so that a carry follows.
struct ExactSquares {
  const float* values = nullptr;
  int64_t count = 0;
  int64_t* slots = nullptr;
  int64_t most_blocks = 1024;  // several on each multiprocessor; no number of them changes a bit of the sum
};

/// Every number once; the slots see atomic additions of integers, whose order changes nothing.
constexpr KernelTraffic traffic(const ExactSquares& a) { return {a.count * 4, 0, 0}; }

}  // namespace titan
