// Every width of vector, whatever this processor has: the compiler makes wide ones of narrow ones.
#include "src/ops/cpu_tiles.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/tensors.h"

namespace titan {
namespace {

template <class S>
class CpuTiles : public ::testing::Test {
 public:
  /// 2^x of each number, a vector at a time.
  static std::vector<float> powers(std::vector<float> x) {
    const size_t count = x.size();
    x.resize(static_cast<size_t>(round_up(static_cast<int64_t>(count), S::kLanes)));
    for (size_t at = 0; at < x.size(); at += S::kLanes) {
      typename S::Vector vector;
      for (int lane = 0; lane < S::kLanes; ++lane) vector[lane] = x[at + static_cast<size_t>(lane)];
      power_of_two<S>(vector);
      for (int lane = 0; lane < S::kLanes; ++lane) x[at + static_cast<size_t>(lane)] = vector[lane];
    }
    x.resize(count);
    return x;
  }
};

using Widths = ::testing::Types<Simd<16>, Simd<32>, Simd<64>>;
TYPED_TEST_SUITE(CpuTiles, Widths);

TYPED_TEST(CpuTiles, APowerOfTwoIsOffByLessThanOneInTenMillion) {
  std::vector<float> x;
  for (double value = -125.9; value <= 126.0; value += 1.0 / 1024 + 1e-7) x.push_back(static_cast<float>(value));
  const std::vector<float> y = TestFixture::powers(x);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::abs(y[i] / std::exp2(double{x[i]}) - 1));
  EXPECT_LT(worst, 1e-7);
}

TYPED_TEST(CpuTiles, APowerOfTwoIsExactAtIntegersZeroBelowNormalNumbersAndKeepsNaN) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> y = TestFixture::powers({0, -1, 10, -126, -127, -1e30f, -infinity, NAN});
  EXPECT_EQ(std::vector<float>(y.begin(), y.end() - 1),
            (std::vector<float>{1, 0.5f, 1024, std::numeric_limits<float>::min(), 0, 0, 0}));
  EXPECT_TRUE(std::isnan(y.back()));
}

TYPED_TEST(CpuTiles, ATransposedTileIsTheTileWithRowsAndColumnsExchangedAndScaled) {
  const at::Tensor in = normal({32, 48}, 1);
  at::Tensor out = at::zeros({48, 32});
  transpose_tile<TypeParam>(out.mutable_data_ptr<float>(), 32, in.const_data_ptr<float>(), 48, 32, 48, 0.5f);
  EXPECT_TRUE(same_bits(out, in.t() * 0.5));
}

TYPED_TEST(CpuTiles, ABlockStartsFromNothingFromTheTileOrFromTheTileScaledByRow) {
  constexpr int kRows = 4, kVectors = 2, kDepth = 13;
  const int64_t columns = kVectors * TypeParam::kLanes;
  const at::Tensor a = normal({kRows, kDepth}, 1), b = normal({kDepth, columns}, 2), c = normal({kRows, columns}, 3);
  const at::Tensor factors = normal({kRows}, 4);
  auto run = [&]<Start kStart>(std::integral_constant<Start, kStart>) {
    at::Tensor result = c.clone();
    multiply_block<TypeParam, kStart, kRows, kVectors>(result.mutable_data_ptr<float>(), columns,
                                                       a.const_data_ptr<float>(), kDepth, 1, b.const_data_ptr<float>(),
                                                       columns, kDepth, factors.const_data_ptr<float>());
    return result;
  };
  const at::Tensor product = as_double(a).mm(as_double(b));
  EXPECT_TRUE(near(run(std::integral_constant<Start, Start::zero>()), product, 1e-6));
  EXPECT_TRUE(near(run(std::integral_constant<Start, Start::add>()), product + c, 1e-6));
  EXPECT_TRUE(near(run(std::integral_constant<Start, Start::scale>()), product + c * factors.unsqueeze(1), 1e-6));
}

}  // namespace
}  // namespace titan
