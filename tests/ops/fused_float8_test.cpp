#include "titan/ops/fused_float8.h"

#include <gtest/gtest.h>

#include "support/tensors.h"

namespace titan {
namespace {

std::shared_ptr<FusedKernels> host(std::vector<std::string>* said = nullptr) {
  return std::make_shared<FusedKernels>(host_kernels(), at::kCPU, [said](const std::string& what) {
    if (said) said->push_back(what);
  });
}

TEST(FusedFloat8, MagnitudesAndCastsAreThoseOfPlainOperationsBitForBit) {
  const Float8Casts fused = make_fused_float8_casts(host()), plain = make_aten_float8_casts();
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{16, 16}, {48, 80}, {128, 72}}) {
      const at::Tensor matrix = normal(shape, 1, type, 20);
      for (Float8Extent extent : {Float8Extent::tensor, Float8Extent::row, Float8Extent::column}) {
        const at::Tensor largest = fused.largest_magnitude(matrix, extent);
        EXPECT_TRUE(same_bits(largest, plain.largest_magnitude(matrix, extent)));
        for (Float8Format format : {Float8Format::e4m3, Float8Format::e5m2}) {
          const at::Tensor scale = float8_scale(largest, format);
          const Float8Matrix actual = fused.cast(matrix, scale, format, Float8Sides::both);
          const Float8Matrix expected = plain.cast(matrix, scale, format, Float8Sides::both);
          EXPECT_TRUE(same_bits(actual.data, expected.data));
          EXPECT_TRUE(same_bits(actual.transposed, expected.transposed));
          EXPECT_FALSE(fused.cast(matrix, scale, format, Float8Sides::data).transposed.defined());
          EXPECT_FALSE(fused.cast(matrix, scale, format, Float8Sides::transposed).data.defined());
        }
      }
    }
  }
}

TEST(FusedFloat8, ANanIsTheLargestMagnitude) {
  const Float8Casts fused = make_fused_float8_casts(host());
  at::Tensor matrix = normal({16, 16}, 1);
  matrix[3][5] = NAN;
  matrix[4][6] = INFINITY;
  EXPECT_TRUE(fused.largest_magnitude(matrix, Float8Extent::tensor).isnan().item<bool>());
  const at::Tensor rows = fused.largest_magnitude(matrix, Float8Extent::row);
  EXPECT_EQ(rows.isnan().sum().item<int64_t>(), 1);
  EXPECT_EQ(rows.isinf().sum().item<int64_t>(), 1);
}

TEST(FusedFloat8, ShapesThatNoKernelCastsAreLeftToPlainOperationsAndSaidOnce) {
  std::vector<std::string> said;
  const Float8Casts fused = make_fused_float8_casts(host(&said)), plain = make_aten_float8_casts();
  const at::Tensor matrix = normal({6, 7}, 1), scale = at::full({}, 3.0f);
  for (int repeat = 0; repeat < 2; ++repeat) {
    EXPECT_TRUE(same_bits(fused.cast(matrix, scale, Float8Format::e4m3, Float8Sides::both).transposed,
                          plain.cast(matrix, scale, Float8Format::e4m3, Float8Sides::both).transposed));
  }
  EXPECT_EQ(
      said,
      (std::vector<std::string>{"a float8 cast of [6, 7] is not what the fused kernels take: plain operations do it"}));
}

}  // namespace
}  // namespace titan
