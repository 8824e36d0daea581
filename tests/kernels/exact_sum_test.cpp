#include "titan/kernels/exact_sum.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "support/exact_reference.h"

namespace titan {
namespace {

using Slots = std::array<int64_t, kExactSlots>;

void add(Slots& slots, int64_t multiple, int exponent) {
  exact_add(multiple, exponent, [&](int limb, int64_t amount) {
    EXPECT_LT(std::abs(amount), int64_t{1} << 32);
    slots[static_cast<size_t>(limb)] += amount;
  });
}

double value_of(int64_t multiple, int exponent) {
  Slots slots{};
  add(slots, multiple, exponent);
  return exact_value(slots.data());
}

TEST(ExactSum, AMultipleOfAPowerOfTwoComesBack) {
  for (int exponent : {-298, -297, -267, -266, -150, -1, 0, 31, 209}) {
    for (int64_t multiple : {int64_t{1}, int64_t{3}, int64_t{1} << 31, (int64_t{1} << 53) - 1, int64_t{1} << 58}) {
      EXPECT_EQ(value_of(multiple, exponent), std::ldexp(static_cast<double>(multiple), exponent)) << exponent;
    }
  }
}

TEST(ExactSum, NegativePartsAreSubtracted) {
  Slots slots{};
  add(slots, 5, 60);
  add(slots, -1, -298);
  add(slots, 1, -298);
  EXPECT_EQ(exact_value(slots.data()), std::ldexp(5.0, 60));
  add(slots, -(int64_t{1} << 57), 3);
  EXPECT_EQ(exact_value(slots.data()), std::ldexp(4.0, 60));
  add(slots, -3, 60);
  EXPECT_EQ(exact_value(slots.data()), std::ldexp(1.0, 60));
}

TEST(ExactSum, HalfwayGoesToTheEvenNeighbourAndABitFarBelowDecides) {
  constexpr int64_t kOdd = (int64_t{1} << 53) + 1;  // between two doubles
  const double even = std::ldexp(1.0, 53);
  for (int shift = 0; shift < 64; ++shift) {
    Slots slots{};
    add(slots, kOdd, shift);
    EXPECT_EQ(exact_value(slots.data()), std::ldexp(even, shift)) << shift;
    add(slots, 1, -298);
    EXPECT_EQ(exact_value(slots.data()), std::ldexp(even + 2, shift)) << shift;
    add(slots, -2, -298);
    EXPECT_EQ(exact_value(slots.data()), std::ldexp(even, shift)) << shift;
  }
}

TEST(ExactSum, CarryingMakesEveryLimbSmallAndLosesNothing) {
  const auto multiple = [](int64_t i) { return (i % 3 - 1) * (int64_t{1} << 57) + 7919 * i; };
  Slots slots{};
  add(slots, 1, 209);  // keeps the sum positive
  for (int i = 0; i < 1000; ++i) add(slots, multiple(i), i % 448 - 298);
  exact_carry(slots.data());
  for (int i = 0; i < kExactLimbs; ++i) {
    EXPECT_GE(slots[i], 0) << i;
    EXPECT_LT(slots[i], int64_t{1} << 32) << i;
  }
  for (int i = 1; i < 1000; ++i) add(slots, -multiple(i), i % 448 - 298);
  add(slots, -multiple(0) + 3, -298);
  add(slots, -1, 209);
  EXPECT_EQ(exact_value(slots.data()), std::ldexp(3.0, -298));
}

TEST(ExactSum, TwoToThe31NormalisedSumsFitWithoutACarry) {
  Slots slots{};
  add(slots, (int64_t{1} << 58) - 1, -298);
  exact_carry(slots.data());
  const double one = exact_value(slots.data());
  int64_t largest = 0;
  for (int i = 0; i < kExactLimbs; ++i) largest = std::max(largest, slots[i]);
  ASSERT_EQ(largest, 0xffffffff);  // the worst limb there can be
  for (int i = 0; i < kExactLimbs; ++i) slots[i] *= int64_t{1} << 31;
  EXPECT_EQ(exact_value(slots.data()), std::ldexp(one, 31));
}

TEST(ExactSum, TwoToThe40OfTheLargestSquaresFit) {
  const double square = std::ldexp(std::ldexp(1.0, 24) - 1, 104) * (std::ldexp(1.0, 24) - 1);  // without 2^104
  EXPECT_EQ(value_of(static_cast<int64_t>(std::ldexp(square, -104)), 208), std::ldexp(square, 104));
  Slots slots{};
  add(slots, static_cast<int64_t>(std::ldexp(square, -104)), 208);
  exact_carry(slots.data());
  for (int doubling = 0; doubling < 40; ++doubling) {
    for (int i = 0; i < kExactLimbs; ++i) slots[i] *= 2;
    exact_carry(slots.data());
  }
  EXPECT_EQ(exact_value(slots.data()), std::ldexp(square, 144));
}

TEST(ExactSum, CountedNansAndInfinitiesAreTheValue) {
  Slots slots{};
  add(slots, 1, 0);
  slots[kExactInfinities] = 2;
  EXPECT_EQ(exact_value(slots.data()), std::numeric_limits<double>::infinity());
  slots[kExactNans] = 1;
  EXPECT_TRUE(std::isnan(exact_value(slots.data())));
}

TEST(ExactGrid, SplitsIntoMultiplesThatAddUpExactlyAndARestBelowHalfAStep) {
  const std::vector<float> values = wide_numbers(2000, 3, -60, 60);
  for (int log2_count : {2, 3, 6}) {
    for (float value : values) {
      const double square = static_cast<double>(value) * value;
      const ExactGrid grid = exact_grid(std::ldexp(1.0, 122), log2_count);
      for (double number : {square, -square}) {
        const double multiple = (number + grid.shift) - grid.shift;
        const double steps = multiple * grid.inverse;
        EXPECT_EQ(steps, std::trunc(steps));
        EXPECT_LE(std::fabs(steps) * std::ldexp(1.0, log2_count), std::ldexp(1.0, 53));
        EXPECT_LE(std::fabs(number - multiple), std::ldexp(0.5, grid.exponent));
      }
    }
  }
}

TEST(ExactGrid, IsNeverFinerThanTheSmallestSquare) {
  const ExactGrid grid = exact_grid(std::ldexp(1.0, -298), 6);
  EXPECT_EQ(grid.exponent, kExactLowest);
  EXPECT_EQ((std::ldexp(1.0, -298) + grid.shift) - grid.shift, std::ldexp(1.0, -298));
}

}  // namespace
}  // namespace titan
