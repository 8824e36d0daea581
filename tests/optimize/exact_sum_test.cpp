#include "titan/optimize/gradient_norm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/exact_reference.h"
#include "support/tensors.h"
#include "titan/base/error.h"

namespace titan {
namespace {

at::Tensor tensor_of(const std::vector<float>& values) { return at::tensor(values, at::kFloat); }

at::Tensor squares(const at::Tensor& tensor) { return exact_squares({tensor}, at::kCPU); }

double value(const std::vector<float>& values) { return exact_value_of(squares(tensor_of(values))).item<double>(); }

TEST(ExactSquares, EqualsTheBigSumWhateverTheTail) {
  for (size_t count : {0, 1, 2, 31, 32, 33, 2047, 2048, 2049, 4097, 32769, 100003}) {
    const std::vector<float> values = wide_numbers(count, count + 1);
    EXPECT_EQ(value(values), exact_reference(values)) << count;
  }
}

TEST(ExactSquares, EqualsTheBigSumWhateverTheExponents) {
  for (const auto& [lowest, highest] : {std::pair{-149, -127}, {-149, 127}, {-40, 0}, {-10, 10}, {126, 127}, {3, 3}}) {
    const std::vector<float> values = wide_numbers(20011, 7, lowest, highest);
    EXPECT_EQ(value(values), exact_reference(values)) << lowest << " to " << highest;
  }
}

TEST(ExactSquares, EqualsTheBigSumForAMillionNumbers) {
  const std::vector<float> values = wide_numbers(1000003, 9);
  EXPECT_EQ(value(values), exact_reference(values));
}

TEST(ExactSquares, OfTheExtremesIsExact) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  constexpr float kSmallest = std::numeric_limits<float>::denorm_min();
  for (const std::vector<float>& values : std::vector<std::vector<float>>{{kSmallest},
                                                                          {kLargest},
                                                                          {1e38f, -1e38f, kSmallest},
                                                                          {0.0f, -0.0f},
                                                                          std::vector<float>(5000, kLargest),
                                                                          std::vector<float>(5000, -kSmallest)}) {
    EXPECT_EQ(value(values), exact_reference(values)) << values[0];
  }
}

TEST(ExactSquares, NothingIsTooSmallToCount) {
  // 1 + 2^-53 lies halfway to the next double: only the last, tiny square decides how it is rounded.
  std::vector<float> values(4096, 0.0f);
  values[0] = 1.0f;
  values[1] = std::ldexp(1.0f, -26);
  values[2] = std::ldexp(1.0f, -27);
  values[3] = values[4] = values[5] = values[2];  // together with values[1]: 2^-52 + 4 · 2^-54
  EXPECT_EQ(value(values), 1 + std::ldexp(2.0, -52));
  values[1] = 0;
  values[4] = values[5] = 0;  // 2 · 2^-54
  EXPECT_EQ(value(values), 1.0);
  values[4095] = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(value(values), 1 + std::ldexp(1.0, -52));
}

TEST(ExactSquares, EveryOrderGivesTheSameSlots) {
  std::vector<float> values = wide_numbers(30011, 11);
  const at::Tensor expected = squares(tensor_of(values));
  std::mt19937_64 random(1);
  for (int i = 0; i < 5; ++i) {
    std::shuffle(values.begin(), values.end(), random);
    EXPECT_TRUE(same_bits(exact_value_of(squares(tensor_of(values))), exact_value_of(expected)));
    EXPECT_TRUE(same_bits(squares(tensor_of(values)), expected));
  }
}

TEST(ExactSquares, EveryCutGivesTheSameBitsAfterAddingUp) {
  const at::Tensor whole = tensor_of(wide_numbers(100003, 13));
  const at::Tensor expected = exact_value_of(squares(whole));
  std::mt19937_64 random(2);
  for (int pieces : {2, 3, 17, 400}) {
    std::vector<int64_t> cuts{0, whole.numel()};
    for (int i = 1; i < pieces; ++i) cuts.push_back(static_cast<int64_t>(random() % 100003));  // some pieces empty
    std::sort(cuts.begin(), cuts.end());
    std::vector<at::Tensor> parts;
    at::Tensor sum = at::zeros({kExactSlots}, at::kLong);
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      parts.push_back(whole.narrow(0, cuts[i], cuts[i + 1] - cuts[i]));
      sum.add_(squares(parts.back()));
    }
    EXPECT_TRUE(same_bits(exact_value_of(sum), expected)) << pieces;
    std::shuffle(parts.begin(), parts.end(), random);
    EXPECT_TRUE(same_bits(exact_squares(parts, at::kCPU), squares(whole))) << pieces;
  }
}

TEST(ExactSquares, EveryNumberOfThreadsGivesTheSameSlots) {
  const at::Tensor tensor = tensor_of(wide_numbers(500009, 15));
  std::vector<at::Tensor> slots;
  for (int threads : {1, 2, 3, 7}) {
    const ThreadCount count(threads);
    slots.push_back(squares(tensor));
    EXPECT_TRUE(same_bits(slots.back(), slots.front())) << threads;
  }
}

TEST(ExactSquares, LimbsAreNormalisedSoThatTwoToThe31RanksCanAddThem) {
  const at::Tensor slots = squares(tensor_of(wide_numbers(500009, 17)));
  EXPECT_GE(slots.min().item<int64_t>(), 0);
  EXPECT_LT(slots.max().item<int64_t>(), int64_t{1} << 32);
}

TEST(ExactSquares, CountsWhatIsNotFiniteApartFromTheRest) {
  std::vector<float> values = wide_numbers(40009, 19);
  const at::Tensor finite = squares(tensor_of(values));
  values.insert(values.begin() + 12345, {NAN, INFINITY, -INFINITY, -NAN, INFINITY});
  values.push_back(INFINITY);
  const at::Tensor slots = squares(tensor_of(values));
  EXPECT_TRUE(same_bits(slots.narrow(0, 0, kExactLimbs), finite.narrow(0, 0, kExactLimbs)));
  EXPECT_EQ(slots[kExactInfinities].item<int64_t>(), 4);
  EXPECT_EQ(slots[kExactNans].item<int64_t>(), 2);
}

TEST(ExactSquares, AreInfiniteOrNanExactlyWhenAValueWas) {
  for (size_t where : {0, 5, 2048, 2049}) {
    std::vector<float> values(2050, 1.0f);
    EXPECT_EQ(value(values), 2050.0);
    values[where] = -INFINITY;
    EXPECT_EQ(value(values), INFINITY) << where;
    values[1000] = NAN;
    EXPECT_TRUE(std::isnan(value(values))) << where;
  }
}

TEST(ExactSquares, OfBf16NumbersAreThoseOfTheSameNumbersInFp32) {
  at::Tensor numbers = normal({70001}, 5, at::kBFloat16);
  numbers[3] = 0x1p-133, numbers[4] = 0x1.fep126, numbers[5] = 0.0;
  EXPECT_TRUE(same_bits(squares(numbers), squares(numbers.to(at::kFloat))));
  numbers[6] = -INFINITY, numbers[7] = NAN;
  EXPECT_TRUE(same_bits(squares(numbers), squares(numbers.to(at::kFloat))));
}

TEST(ExactSquares, OtherTypesAndStridesAreABug) {
  EXPECT_THROW(squares(at::ones({4}, at::kDouble)), InvariantError);
  EXPECT_THROW(squares(at::ones({4, 4}).t().narrow(0, 0, 2)), InvariantError);
  EXPECT_THROW(exact_value_of(at::zeros({kExactSlots})), InvariantError);
}

}  // namespace
}  // namespace titan
