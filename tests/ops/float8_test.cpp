#include "titan/ops/float8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/tensors.h"

namespace titan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The formats as their definition says: sign, exponent, mantissa; e4m3 gives up infinities for one more binade.
struct Definition {
  int mantissa_bits;
  int bias;
  bool has_infinity;
};

Definition definition_of(Float8Format format) {
  return format == Float8Format::e4m3 ? Definition{3, 7, false} : Definition{2, 15, true};
}

double decode(Float8Format format, int code) {
  const Definition d = definition_of(format);
  const int mantissa = code & ((1 << d.mantissa_bits) - 1);
  const int exponent = (code & 0x7F) >> d.mantissa_bits;
  const double sign = (code & 0x80) != 0 ? -1 : 1;
  const int top = (1 << (7 - d.mantissa_bits)) - 1;
  if (d.has_infinity && exponent == top) return mantissa == 0 ? sign * kInfinity : NAN;
  if (!d.has_infinity && (code & 0x7F) == 0x7F) return NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - d.bias - d.mantissa_bits);
  return sign * std::ldexp((1 << d.mantissa_bits) + mantissa, exponent - d.bias - d.mantissa_bits);
}

bool is_finite_code(Float8Format format, int code) { return std::isfinite(decode(format, code)); }

/// The code nearest to `value` by exhaustive search, ties to the even one; beyond the largest value the largest.
int encode(Float8Format format, double value) {
  if (std::isnan(value)) return 0x7F;
  const int sign = std::signbit(value) ? 0x80 : 0;
  const double amax = std::min(std::abs(value), largest_value(format));
  int best = 0;
  for (int code = 1; code < 0x80; ++code) {
    if (!is_finite_code(format, code)) continue;
    const double gap = std::abs(decode(format, code) - amax);
    const double best_gap = std::abs(decode(format, best) - amax);
    if (gap < best_gap || (gap == best_gap && code % 2 == 0)) best = code;
  }
  return sign | best;
}

/// Values that a cast could get wrong: every code, every tie and its neighbours in fp32, and what lies beyond.
std::vector<float> delicate_values(Float8Format format) {
  std::vector<float> values{0.0F, -0.0F, 1e-30F, std::numeric_limits<float>::denorm_min(), 3e38F};
  for (int code = 0; code < 0x7F; ++code) {
    if (!is_finite_code(format, code)) continue;
    const auto low = static_cast<float>(decode(format, code));
    values.push_back(low);
    const double next = is_finite_code(format, code + 1) ? decode(format, code + 1) : 2 * low;
    const auto tie = static_cast<float>((low + next) / 2);
    for (const float value : {tie, std::nextafter(tie, 0.0F), std::nextafter(tie, 1e38F)}) values.push_back(value);
  }
  const size_t count = values.size();
  for (size_t i = 0; i < count; ++i) values.push_back(-values[i]);
  return values;
}

std::vector<uint8_t> bytes_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous().view(at::kByte).reshape({-1});
  return {flat.const_data_ptr<uint8_t>(), flat.const_data_ptr<uint8_t>() + flat.numel()};
}

at::Tensor one() { return at::ones({}); }

class Float8Formats : public ::testing::TestWithParam<Float8Format> {};

TEST_P(Float8Formats, EveryCodeIsWhatTheDefinitionSays) {
  std::vector<uint8_t> codes(256);
  for (size_t code = 0; code < 256; ++code) codes[code] = static_cast<uint8_t>(code);
  const at::Tensor values = at::from_blob(codes.data(), {256}, at::kByte).view(scalar_type(GetParam())).to(at::kDouble);
  for (int code = 0; code < 256; ++code) {
    const double expected = decode(GetParam(), code);
    const double found = values[code].item<double>();
    EXPECT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected))) << code << ": " << found;
  }
}

TEST_P(Float8Formats, ACastIsTheNearestCodeWithTiesToEvenAndEndsAtTheLargest) {
  const Float8Casts casts = make_aten_float8_casts();
  std::vector<float> values = delicate_values(GetParam());
  const at::Tensor matrix = at::from_blob(values.data(), {1, static_cast<int64_t>(values.size())}, at::kFloat);
  const std::vector<uint8_t> found = bytes_of(casts.cast(matrix, one(), GetParam(), Float8Sides::data).data);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(int{found[i]}, encode(GetParam(), values[i])) << values[i];
  }
}

TEST_P(Float8Formats, ACastOfNoNumberIsNoNumberAndInfinitiesEndAtTheLargest) {
  const Float8Casts casts = make_aten_float8_casts();
  const at::Tensor odd = at::tensor({NAN, INFINITY, -INFINITY}).view({1, 3});
  const at::Tensor wide = casts.cast(odd, one(), GetParam(), Float8Sides::data).data.to(at::kDouble);
  EXPECT_TRUE(std::isnan(wide[0][0].item<double>()));
  EXPECT_EQ(wide[0][1].item<double>(), largest_value(GetParam()));
  EXPECT_EQ(wide[0][2].item<double>(), -largest_value(GetParam()));
}

TEST_P(Float8Formats, ACastMultipliesInFp32AndTakesTheScaleOfEachRowOrColumn) {
  const Float8Casts casts = make_aten_float8_casts();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor matrix = normal({13, 7}, 3, type);
    for (const auto extent : {Float8Extent::tensor, Float8Extent::row, Float8Extent::column}) {
      const at::Tensor scale = float8_scale(casts.amax(matrix, extent), GetParam());
      const Float8Matrix cast = casts.cast(matrix, scale, GetParam(), Float8Sides::both);
      const std::vector<uint8_t> found = bytes_of(cast.data);
      const at::Tensor wide_scale = scale.expand({13, 7});
      for (int64_t i = 0; i < matrix.numel(); ++i) {
        const float product = matrix[i / 7][i % 7].item<float>() * wide_scale[i / 7][i % 7].item<float>();
        EXPECT_EQ(int{found[static_cast<size_t>(i)]}, encode(GetParam(), product)) << i;
      }
      EXPECT_EQ(bytes_of(cast.transposed), bytes_of(cast.data.t()));
      EXPECT_TRUE(cast.transposed.is_contiguous());
    }
  }
}

TEST_P(Float8Formats, TheScaleIsTheLargestValueOverTheAmaxRoundedOnceToFp32) {
  at::Tensor amaxes = normal({257}, 5).abs().mul_(3);
  amaxes[0] = 0;
  amaxes[1] = 1e-13;
  amaxes[2] = 1e30;
  const at::Tensor scale = float8_scale(amaxes, GetParam());
  ASSERT_EQ(scale.scalar_type(), at::kFloat);
  for (int64_t i = 0; i < amaxes.numel(); ++i) {
    const double amax = std::max<double>(amaxes[i].item<float>(), 1e-12);
    EXPECT_EQ(scale[i].item<float>(), static_cast<float>(largest_value(GetParam()) / amax)) << amax;
  }
}

TEST_P(Float8Formats, APowerOfTwoIsTheGreatestThatIsNoGreaterThanTheScale) {
  at::Tensor amaxes = normal({257}, 6).abs().mul_(3);
  amaxes[0] = largest_value(GetParam());        // scale 1, a power of two already
  amaxes[1] = largest_value(GetParam()) / 256;  // scale 256
  const at::Tensor scale = float8_scale(amaxes, GetParam());
  const at::Tensor rounded = float8_scale(amaxes, GetParam(), /*power_of_two=*/true);
  for (int64_t i = 0; i < amaxes.numel(); ++i) {
    int exponent = 0;
    EXPECT_EQ(std::frexp(rounded[i].item<float>(), &exponent), 0.5F);
    EXPECT_LE(rounded[i].item<float>(), scale[i].item<float>());
    EXPECT_GT(2 * rounded[i].item<float>(), scale[i].item<float>());
  }
  EXPECT_EQ(rounded[0].item<float>(), 1);
  EXPECT_EQ(rounded[1].item<float>(), 256);
}

TEST_P(Float8Formats, WhatIsNotFiniteShowsInTheScale) {
  for (const bool power_of_two : {false, true}) {
    const at::Tensor scale = float8_scale(at::tensor({NAN, INFINITY}), GetParam(), power_of_two);
    EXPECT_TRUE(std::isnan(scale[0].item<float>())) << power_of_two;
    EXPECT_EQ(scale[1].item<float>(), 0) << power_of_two;
  }
}

INSTANTIATE_TEST_SUITE_P(Float8, Float8Formats, ::testing::Values(Float8Format::e4m3, Float8Format::e5m2),
                         [](const auto& info) { return info.param == Float8Format::e4m3 ? "e4m3" : "e5m2"; });

TEST(Float8Amax, IsTheLargestOfATensorOfEachRowAndOfEachColumn) {
  const Float8Casts casts = make_aten_float8_casts();
  const at::Tensor matrix = at::tensor({1.0F, -5.0F, 2.0F, 0.5F, 3.0F, -7.0F}).view({2, 3});
  EXPECT_EQ(casts.amax(matrix, Float8Extent::tensor).item<float>(), 7);
  EXPECT_TRUE(same_bits(casts.amax(matrix, Float8Extent::row), at::tensor({5.0F, 7.0F}).view({2, 1})));
  EXPECT_TRUE(same_bits(casts.amax(matrix, Float8Extent::column), at::tensor({1.0F, 5.0F, 7.0F}).view({1, 3})));
  EXPECT_TRUE(std::isnan(casts.amax(at::tensor({1.0F, NAN}).view({1, 2}), Float8Extent::tensor).item<float>()));
  EXPECT_EQ(casts.amax(at::empty({0, 3}), Float8Extent::tensor).item<float>(), 0) << "of a rank that has nothing";
}

}  // namespace
}  // namespace titan
