#include "titan/ops/rotary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "support/operation.h"

namespace titan {
namespace {

/// x [B, T, H, d] turned by angle position·f_j per adjacent pair, in float64: the definition written out.
at::Tensor turned(const at::Tensor& x, const at::Tensor& positions, const std::vector<double>& frequencies) {
  at::Tensor result = as_double(x).clone();
  for (size_t j = 0; j < frequencies.size(); ++j) {
    const auto even = static_cast<int64_t>(2 * j);
    const at::Tensor angle = as_double(positions).mul(frequencies[j]).unsqueeze(-1);  // [B, T, 1]
    const at::Tensor a = as_double(x).select(3, even);
    const at::Tensor b = as_double(x).select(3, even + 1);
    result.select(3, even).copy_(a * angle.cos() - b * angle.sin());
    result.select(3, even + 1).copy_(a * angle.sin() + b * angle.cos());
  }
  return result;
}

/// θ^(−2j/d), scaled by the published rule: long waves slowed by the factor, short ones kept, a ramp between.
std::vector<double> frequencies(int64_t head_dim, double theta, const std::optional<RotaryScaling>& scaling = {}) {
  std::vector<double> result;
  for (int64_t j = 0; j < head_dim / 2; ++j) {
    double f = std::pow(theta, -2.0 * static_cast<double>(j) / static_cast<double>(head_dim));
    if (scaling) {
      const double wavelength = 2 * std::numbers::pi / f;
      const double original = static_cast<double>(scaling->original_context);
      if (wavelength > original / scaling->low_freq_factor) {
        f /= scaling->factor;
      } else if (wavelength >= original / scaling->high_freq_factor) {
        const double s =
            (original / wavelength - scaling->low_freq_factor) / (scaling->high_freq_factor - scaling->low_freq_factor);
        f = (1 - s) * f / scaling->factor + s * f;
      }
    }
    result.push_back(f);
  }
  return result;
}

at::Tensor places(int64_t samples, int64_t length) {
  return at::arange(length, at::kLong).unsqueeze(0).expand({samples, length});
}

class RotaryTypes : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(RotaryTypes, TurnsAdjacentPairsAndBackwardTurnsBack) {
  const at::ScalarType type = GetParam();
  const auto f = frequencies(10, 1e4);
  const at::Tensor table = rotary_table(17, 10, 1e4, {});
  PlainContext plain;
  const at::Tensor q_values = normal({2, 13, 3, 10}, 1, type);
  const at::Tensor k_values = normal({2, 13, 1, 10}, 2, type);
  // Products are overwritten, so they enter as non-leaves of the graph.
  at::Tensor q_leaf = leaf(q_values), k_leaf = leaf(k_values);
  auto [q, k] = rotate(q_leaf.mul(1), k_leaf.mul(1), table, {}, plain.context);
  EXPECT_TRUE(near(q, turned(q_values, places(2, 13), f), tolerance(type)));
  EXPECT_TRUE(near(k, turned(k_values, places(2, 13), f), tolerance(type)));
  EXPECT_EQ(q.scalar_type(), type);

  const at::Tensor dq = normal(q.sizes(), 3, type);
  const at::Tensor dk = normal(k.sizes(), 4, type);
  const auto gradients = backward({q, k}, {dq, dk}, {q_leaf, k_leaf});
  EXPECT_TRUE(near(gradients[0], turned(dq, -places(2, 13), f), tolerance(type)));
  EXPECT_TRUE(near(gradients[1], turned(dk, -places(2, 13), f), tolerance(type)));
}

TEST_P(RotaryTypes, ExplicitPositionsChooseTheRowsOfTheTable) {
  const at::ScalarType type = GetParam();
  const at::Tensor positions = integers({3, 7}, 19, 5);
  PlainContext plain;
  const at::Tensor values = normal({3, 7, 2, 6}, 6, type);
  at::Tensor x_leaf = leaf(values), y_leaf = leaf(values);
  auto [q, k] = rotate(x_leaf.mul(1), y_leaf.mul(1), rotary_table(19, 6, 5e5, {}), positions, plain.context);
  EXPECT_TRUE(near(q, turned(values, positions, frequencies(6, 5e5)), tolerance(type)));
  EXPECT_TRUE(same_bits(q, k));
  const at::Tensor d = normal(values.sizes(), 7, type);
  EXPECT_TRUE(
      near(backward({q, k}, {d, d}, {x_leaf, y_leaf})[0], turned(d, -positions, frequencies(6, 5e5)), tolerance(type)));
}

TEST_P(RotaryTypes, QueryAndKeyMayBeColumnsOfOneMatrixAndSoMayTheirGradients) {
  const at::ScalarType type = GetParam();
  constexpr int64_t kSamples = 2, kLength = 5, kHeads = 3, kKeyHeads = 1, kHeadDim = 6;
  constexpr int64_t kQuery = kHeads * kHeadDim, kKey = kKeyHeads * kHeadDim;
  const at::Tensor table = rotary_table(kLength, kHeadDim, 1e4, {});
  const at::Tensor matrix = normal({kSamples * kLength, kQuery + 2 * kKey}, 8, type);
  const auto heads_of = [&](const at::Tensor& of, int64_t first, int64_t heads) {
    return of.narrow(1, first, heads * kHeadDim).view({kSamples, kLength, heads, kHeadDim});
  };
  PlainContext plain;
  at::Tensor q_leaf = leaf(heads_of(matrix, 0, kHeads)), k_leaf = leaf(heads_of(matrix, kQuery, kKeyHeads));
  auto [expected_q, expected_k] = rotate(q_leaf.mul(1), k_leaf.mul(1), table, {}, plain.context);
  const at::Tensor dq = normal(expected_q.sizes(), 9, type), dk = normal(expected_k.sizes(), 10, type);
  const auto wanted = backward({expected_q, expected_k}, {dq, dk}, {q_leaf, k_leaf});

  const at::Tensor turned_matrix = matrix.clone();
  at::Tensor q_in = heads_of(turned_matrix, 0, kHeads).detach().set_requires_grad(true);
  at::Tensor k_in = heads_of(turned_matrix, kQuery, kKeyHeads).detach().set_requires_grad(true);
  auto columns = std::make_shared<ColumnGradients>(std::vector<int64_t>{kQuery, kKey, kKey});
  auto [q, k] = rotate(q_in, k_in, table, {}, plain.context, columns);
  EXPECT_TRUE(same_bits(q.contiguous(), expected_q));
  EXPECT_TRUE(same_bits(k.contiguous(), expected_k));
  EXPECT_EQ(q.const_data_ptr(), turned_matrix.const_data_ptr()) << "in place";
  EXPECT_TRUE(same_bits(turned_matrix.narrow(1, kQuery + kKey, kKey).contiguous(),
                        matrix.narrow(1, kQuery + kKey, kKey).contiguous()));
  const auto got = backward({q, k}, {dq, dk}, {q_in, k_in});
  const at::Tensor dv = normal({kSamples * kLength, kKey}, 11, type);
  const at::Tensor all = columns->complete({got[0], got[1], dv});
  const auto rows = [&](const at::Tensor& heads) { return heads.reshape({kSamples * kLength, -1}); };
  EXPECT_TRUE(same_bits(all, at::cat({rows(wanted[0]), rows(wanted[1]), dv}, 1)));
}

INSTANTIATE_TEST_SUITE_P(Rotary, RotaryTypes, ::testing::Values(at::kFloat, at::kBFloat16));

TEST(Rotary, PositionsThatCountFromZeroGiveTheBitsOfNone) {
  PlainContext plain;
  const at::Tensor table = rotary_table(8, 4, 1e4, {});
  auto run = [&](const at::Tensor& positions) {
    return rotate(normal({2, 8, 2, 4}, 1), normal({2, 8, 1, 4}, 2), table, positions, plain.context).first;
  };
  EXPECT_TRUE(same_bits(run({}), run(places(2, 8).contiguous())));
}

TEST(Rotary, OneRowOfPositionsServesEverySample) {
  PlainContext plain;
  const at::Tensor table = rotary_table(19, 4, 1e4, {});
  const at::Tensor positions = integers({1, 8}, 19, 5);
  auto run = [&](const at::Tensor& places) {
    const at::Tensor q = leaf(normal({3, 8, 2, 4}, 1)), k = leaf(normal({3, 8, 1, 4}, 2));
    const auto turned = rotate(q.mul(1), k.mul(1), table, places, plain.context);
    std::vector<at::Tensor> results = backward({turned.first}, {normal(q.sizes(), 3)}, {q});
    results.push_back(turned.second.detach());
    return results;
  };
  const auto shared = run(positions), repeated = run(positions.repeat({3, 1}));
  for (size_t i = 0; i < shared.size(); ++i) EXPECT_TRUE(same_bits(shared[i], repeated[i])) << i;
}

TEST(Rotary, ProductsThatTheRecorderKeepsAreLeftAsTheyWere) {
  ImmediateSink sink;
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (int kept : {0, 1}) {
      UnitContext context(UnitMode::train, RecomputePolicy::full().set(ResultKind::linear, kept, Keep::keep), sink);
      context.recorder.start(Recorder::Phase::first_run);
      std::array<at::Tensor, 2> products{normal({1, 5, 2, 4}, 1, type), normal({1, 5, 1, 4}, 2, type)};
      const at::Tensor before = products[static_cast<size_t>(kept)].clone();
      auto turned = rotate(products[0], products[1], rotary_table(5, 4, 1e4, {}), {}, context);
      EXPECT_TRUE(same_bits(products[static_cast<size_t>(kept)], before)) << kept;
      EXPECT_TRUE((kept == 0 ? turned.second : turned.first).is_alias_of(products[static_cast<size_t>(1 - kept)]));
    }
  }
}

TEST(Rotary, TheTableIsTheComplexExponentialOfTheDefinition) {
  const at::Tensor table = rotary_table(50, 8, 1e4, {});
  ASSERT_EQ(table.scalar_type(), at::kComplexFloat);
  const auto f = frequencies(8, 1e4);
  for (int64_t t : {0, 1, 49}) {
    for (int64_t j = 0; j < 4; ++j) {
      const auto value = table[t][j].item<c10::complex<float>>();
      const double angle = static_cast<double>(t) * f[static_cast<size_t>(j)];
      EXPECT_NEAR(value.real(), std::cos(angle), 1e-5);
      EXPECT_NEAR(value.imag(), std::sin(angle), 1e-5);
    }
  }
}

TEST(Rotary, ScalingFollowsThePublishedRuleForLlama31AndLlama32) {
  for (double factor : {8.0, 32.0}) {
    const RotaryScaling scaling{
        .factor = factor, .low_freq_factor = 1, .high_freq_factor = 4, .original_context = 8192};
    for (int64_t head_dim : {64, 128}) {
      const at::Tensor table = rotary_table(2, head_dim, 5e5, scaling);
      const auto wanted = frequencies(head_dim, 5e5, scaling);
      const auto plain = frequencies(head_dim, 5e5);
      int slowed = 0, kept = 0, between = 0;
      for (int64_t j = 0; j < head_dim / 2; ++j) {
        const auto at_one = table[1][j].item<c10::complex<float>>();  // exp(i·f)
        const double f = wanted[static_cast<size_t>(j)];
        EXPECT_NEAR(std::atan2(at_one.imag(), at_one.real()), f, 2e-6 * f + 1e-12);
        const double ratio = plain[static_cast<size_t>(j)] / f;
        (ratio == 1.0 ? kept : ratio == factor ? slowed : between) += 1;
      }
      EXPECT_GT(slowed, 0);
      EXPECT_GT(kept, 0);
      EXPECT_GT(between, 0);
    }
  }
}

}  // namespace
}  // namespace titan
