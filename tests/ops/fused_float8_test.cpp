#include "titan/ops/float8_products.h"

#include <gtest/gtest.h>

#include "support/host_kernels.h"
#include "support/tensors.h"

namespace titan {
namespace {

std::shared_ptr<FusedKernels> host(std::vector<std::string>* said = nullptr) {
  return std::make_shared<FusedKernels>(host_kernels(), at::kCPU, [said](const std::string& what) {
    if (said) said->push_back(what);
  });
}

TEST(FusedFloat8, AmaxesAndCastsAreThoseOfPlainOperationsBitForBit) {
  const Float8Casts fused = make_fused_float8_casts(host()), plain = make_aten_float8_casts();
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{16, 16}, {48, 80}, {128, 72}}) {
      const at::Tensor matrix = normal(shape, 1, type, 20);
      for (Float8Extent extent : {Float8Extent::tensor, Float8Extent::row, Float8Extent::column}) {
        const at::Tensor largest = fused.amax(matrix, extent);
        EXPECT_TRUE(same_bits(largest, plain.amax(matrix, extent)));
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

TEST(FusedFloat8, ScalesAndTheirInversesAreThoseOfPlainOperationsBitForBit) {
  const Float8Casts fused = make_fused_float8_casts(host()), plain = make_aten_float8_casts();
  std::vector<at::Tensor> scalars;  // more than one launch takes
  for (const double amax : {0.0, 1e-13, 1e-12, 0.37, 448.0, 1e30, static_cast<double>(INFINITY), 3.0, 5.0, 7.0}) {
    scalars.push_back(at::full({}, amax, at::kFloat));
  }
  const at::Tensor block = normal({3, 257}, 4).abs();
  for (const std::vector<at::Tensor>& largest :
       {scalars, block.unbind(), {block.view({-1, 1})}, {block.view({1, -1})}, block.view({-1}).unbind()}) {
    for (Float8Format format : {Float8Format::e4m3, Float8Format::e5m2}) {
      for (bool power_of_two : {false, true}) {
        const Float8Scales actual = fused.scales(largest, format, power_of_two);
        const Float8Scales expected = plain.scales(largest, format, power_of_two);
        EXPECT_TRUE(same_bits(actual.block, expected.block));
        for (size_t i = 0; i < largest.size(); ++i) {
          const Float8Scale one = actual[static_cast<int64_t>(i)];
          EXPECT_TRUE(same_bits(one.value, float8_scale(largest[i], format, power_of_two)));
          EXPECT_TRUE(same_bits(one.inverse, one.value.reciprocal()));
        }
      }
    }
  }
}

TEST(FusedFloat8, ANumberThatIsNoneIsSeenInTheScaleAndItsInverse) {
  const Float8Casts fused = make_fused_float8_casts(host());
  for (bool power_of_two : {false, true}) {
    const Float8Scale scale = fused.scales({at::full({}, NAN, at::kFloat)}, Float8Format::e4m3, power_of_two)[0];
    EXPECT_TRUE(scale.value.isnan().item<bool>());
    EXPECT_TRUE(scale.inverse.isnan().item<bool>());
  }
}

TEST(FusedFloat8, AmaxesOfSeveralMatricesLieWhereTheCallerWantsThem) {
  const Float8Casts fused = make_fused_float8_casts(host()), plain = make_aten_float8_casts();
  const std::vector<at::Tensor> matrices{normal({16, 16}, 1, at::kBFloat16), normal({48, 80}, 2, at::kBFloat16)};
  const at::Tensor zeros = at::zeros({2});
  EXPECT_TRUE(fused.amaxes(matrices, zeros).is_same(zeros));
  EXPECT_TRUE(same_bits(zeros, plain.amaxes(matrices, {})));
  EXPECT_TRUE(same_bits(fused.amaxes(matrices, {}), zeros));
}

TEST(FusedFloat8, ANanIsTheAmax) {
  const Float8Casts fused = make_fused_float8_casts(host());
  at::Tensor matrix = normal({16, 16}, 1);
  matrix[3][5] = NAN;
  matrix[4][6] = INFINITY;
  EXPECT_TRUE(fused.amax(matrix, Float8Extent::tensor).isnan().item<bool>());
  const at::Tensor rows = fused.amax(matrix, Float8Extent::row);
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
      (std::vector<std::string>{"the fused kernels do not compute a float8 cast of [6, 7]; plain operations do"}));
}

}  // namespace
}  // namespace titan
