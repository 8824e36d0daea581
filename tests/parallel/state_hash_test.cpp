#include "titan/parallel/state_hash.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace titan {
namespace {

at::Tensor hashed_numbers(int64_t count, at::ScalarType type) {
  return at::linspace(-3, 5, count, at::kFloat).to(type).contiguous();
}

void flip_bit_of(const at::Tensor& tensor, int64_t bit) {
  static_cast<uint8_t*>(tensor.mutable_data_ptr())[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
}

int64_t hash_by_operations(const at::Tensor& tensor) { return state_by_operations(tensor)[0].item<int64_t>(); }
int64_t hash_on_host(const at::Tensor& tensor) { return states_of(std::span(&tensor, 1))[0].hash; }

class StateHashOf : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(StateHashOf, EveryBitChangesIt) {
  const at::Tensor tensor = hashed_numbers(37, GetParam());
  const int64_t host = hash_on_host(tensor), operations = hash_by_operations(tensor);
  for (int64_t bit = 0; bit < static_cast<int64_t>(tensor.nbytes()) * 8; ++bit) {
    flip_bit_of(tensor, bit);
    EXPECT_NE(hash_on_host(tensor), host) << bit;
    EXPECT_NE(hash_by_operations(tensor), operations) << bit;
    flip_bit_of(tensor, bit);
  }
  EXPECT_EQ(hash_on_host(tensor), host);
  EXPECT_EQ(hash_by_operations(tensor), operations);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, StateHashOf, ::testing::Values(at::kFloat, at::kBFloat16, at::kByte),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(StateHash, TensorOperationsFindABitOfALaterChunk) {
  const at::Tensor tensor = hashed_numbers((int64_t{1} << 20) + 11, at::kFloat);
  const int64_t before = hash_by_operations(tensor);
  flip_bit_of(tensor, 32 * ((int64_t{1} << 20) + 5));
  EXPECT_NE(hash_by_operations(tensor), before);
}

TEST(StateHash, NumbersThatAreExchangedChangeIt) {
  at::Tensor tensor = hashed_numbers(16, at::kFloat);
  const int64_t host = hash_on_host(tensor), operations = hash_by_operations(tensor);
  const at::Tensor other = tensor.flip({0}).contiguous();
  EXPECT_NE(hash_on_host(other), host);
  EXPECT_NE(hash_by_operations(other), operations);
}

TEST(StateHash, InfinitiesAndNaNsAreNotFinite) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    at::Tensor tensor = hashed_numbers(100, type);
    EXPECT_TRUE(states_of(std::span(&tensor, 1))[0].is_finite);
    EXPECT_EQ(state_by_operations(tensor)[1].item<int64_t>(), 0);
    for (const double odd : {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()}) {
      at::Tensor one = tensor.clone();
      one[57].fill_(odd);
      EXPECT_FALSE(states_of(std::span(&one, 1))[0].is_finite) << odd;
      EXPECT_GT(state_by_operations(one)[1].item<int64_t>(), 0) << odd;
    }
  }
}

TEST(StateHash, TheLargestNumberIsFinite) {
  const at::Tensor tensor = at::full({3}, std::numeric_limits<float>::max(), at::kFloat);
  EXPECT_TRUE(states_of(std::span(&tensor, 1))[0].is_finite);
  EXPECT_EQ(state_by_operations(tensor)[1].item<int64_t>(), 0);
}

TEST(StateHash, AnEmptyShardHasOne) {
  const at::Tensor tensor = at::empty({0, 4}, at::kFloat);
  EXPECT_TRUE(states_of(std::span(&tensor, 1))[0].is_finite);
  EXPECT_EQ(state_by_operations(tensor)[1].item<int64_t>(), 0);
}

}  // namespace
}  // namespace titan
