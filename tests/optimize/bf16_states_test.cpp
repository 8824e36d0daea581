// Masters and moments in bf16: what stochastic rounding does to a number, that every way to cut a tensor rounds alike,
// and that small updates are not lost.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <tuple>

#include "src/optimize/cpu_kernels.h"
#include "support/optimizer_options.h"
#include "support/tensors.h"
#include "titan/base/philox.h"
#include "titan/optimize/adam.h"

namespace titan {
namespace {

uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

TEST(StochasticRounding, GoesUpForAsManyRandomNumbersAsThePartCutOffHasUnits) {
  for (const float value : {1.2345f, -1.2345f, 3e-39f, 1e30f, -7.00001f}) {
    const uint32_t below = bits_of(value) >> 16;
    uint32_t up = 0;
    for (uint32_t random = 0; random < 1 << 16; ++random) {
      const uint32_t rounded = round_stochastically(bits_of(value), random);
      EXPECT_TRUE(rounded == below || rounded == below + 1) << value;
      up += rounded - below;
    }
    EXPECT_EQ(up, bits_of(value) & 0xFFFF) << value;
  }
}

TEST(StochasticRounding, KeepsWhatBf16HasAndWhatIsNoNumber) {
  for (const uint32_t random : {0u, 1u, 0x8000u, 0xFFFFu}) {
    for (const float value : {0.f, -0.f, 1.f, -2.5f, 0x1p-126f, INFINITY, -INFINITY}) {
      EXPECT_EQ(round_stochastically(bits_of(value), random), bits_of(value) >> 16) << value;
    }
    for (const uint32_t nan : {0x7FC00000u, 0x7FFFFFFFu, 0xFFFFFFFFu, 0x7F800001u}) {
      EXPECT_EQ(round_stochastically(nan, random) & 0x7FFF, 0x7FC0u) << nan;
    }
  }
}

TEST(RoundingBits, AreHalvesOfTheWordsOfPhilox) {
  const RoundingKey key{0x0123456789ABCDEF, 0xFEDCBA9876543210};
  for (const int64_t index : {int64_t{0}, int64_t{1}, int64_t{77}, (int64_t{1} << 40) + 3}) {
    std::array<uint32_t, 4> words{static_cast<uint32_t>(index / 2), static_cast<uint32_t>(index / 2 >> 32), 0x76543210,
                                  0xFEDCBA98};
    philox_words<7>(words[0], words[1], words[2], words[3], key.key);
    const RoundingBits random_bits = rounding_bits(key, index);
    const size_t first = index % 2 == 0 ? 0 : 2;
    EXPECT_EQ(random_bits.of(KeptNumber::weight), words[first] >> 16);
    EXPECT_EQ(random_bits.of(KeptNumber::second_moment), words[first] & 0xFFFF);
    EXPECT_EQ(random_bits.of(KeptNumber::first_moment), words[first + 1] >> 16);
  }
}

TEST(RoundingBits, AreEvenlySpreadAndApartForTheThreeNumbersOfAnElement) {
  constexpr int64_t kCount = 1 << 16;
  const RoundingKey key{123, 456};
  std::array<double, 3> mean{}, product{};
  for (int64_t i = 0; i < kCount; ++i) {
    const RoundingBits random_bits = rounding_bits(key, i);
    const std::array<double, 3> x{random_bits.of(KeptNumber::weight) / 65536. - .5,
                                  random_bits.of(KeptNumber::first_moment) / 65536. - .5,
                                  random_bits.of(KeptNumber::second_moment) / 65536. - .5};
    for (size_t k = 0; k < 3; ++k) {
      mean[k] += x[k] / kCount;
      product[k] += 12 * x[k] * x[(k + 1) % 3] / kCount;
    }
  }
  // Five standard deviations.
  for (size_t k = 0; k < 3; ++k) {
    EXPECT_NEAR(mean[k], 0, 5 * std::sqrt(1. / 12 / kCount));
    EXPECT_NEAR(product[k], 0, 5 / std::sqrt(1. * kCount));
  }
}

TEST(CpuRounding, HasTheRandomBitsOfEachElementWhateverTheCut) {
  const int64_t count = 5003;
  const at::Tensor values = normal({count}, 3);
  for (const RoundingPlace place : {RoundingPlace{0, count, 1}, RoundingPlace{7, count, 1}, RoundingPlace{6, 3, 11},
                                    RoundingPlace{(int64_t{1} << 33) - 501, 2500, 4001}}) {
    const Rounding rounding{{0x123456789ABCDEF0, 42}, place};
    for (const KeptNumber number : {KeptNumber::weight, KeptNumber::first_moment, KeptNumber::second_moment}) {
      std::vector<BFloat16Bits> rounded(count);
      const float* from = values.const_data_ptr<float>();
      for (int64_t begin = 0; begin < count; begin += 1711) {
        cpu_round(from, rounded.data(), begin, std::min<int64_t>(1711, count - begin), rounding, number);
      }
      for (int64_t i = 0; i < count; ++i) {
        const uint32_t random = rounding_bits(rounding.key, place.index(i)).of(number);
        ASSERT_EQ(rounded[static_cast<size_t>(i)].bits, round_stochastically(bits_of(from[i]), random)) << i;
      }
    }
  }
}

/// Dtypes of masters and moments.
using Dtypes = std::tuple<at::ScalarType, at::ScalarType>;

/// Some of a model's parameters as one rank has them: its boxes, with the gradients that all ranks agree on.
struct Rank {
  Rank(const std::vector<std::vector<int64_t>>& shapes, const std::vector<TensorLayout>& layouts,
       const std::vector<int64_t>& coordinates, const Dtypes& dtypes, OptimizerSection options,
       uint64_t rounding_seed = 9) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      owned.push_back(std::make_unique<Parameter>(ParameterSpec{"layer." + std::to_string(i), shapes[i], {}}));
      const Box box = layouts[i].box(coordinates);
      owned.back()->place(layouts[i], box, box, /*owns_shard=*/true);
      owned.back()->master = part_of(normal(shapes[i], 77 + i), box).to(std::get<0>(dtypes)).contiguous();
      all.push_back(owned.back().get());
    }
    ParameterGroup group;
    for (size_t i = 0; i < shapes.size(); ++i) group.members.push_back(i);
    options.state_dtype = std::get<1>(dtypes) == at::kBFloat16 ? ElementType::bfloat16 : ElementType::float32;
    optimizer = std::make_unique<AdamOptimizer>(all, std::vector<ParameterGroup>{group}, options, rounding_seed);
  }

  static at::Tensor part_of(at::Tensor whole, const Box& box) {
    for (size_t d = 0; d < box.extent.size(); ++d) {
      whole = whole.narrow(static_cast<int64_t>(d), box.offset[d], box.extent[d]);
    }
    return whole;
  }

  void step(int64_t t, double lr = 0.01) {
    for (size_t i = 0; i < all.size(); ++i) {
      const at::Tensor gradient = normal(all[i]->spec().shape, 1000 * static_cast<uint64_t>(t) + i, at::kFloat, 0.1);
      all[i]->gradient_shard = part_of(gradient, all[i]->shard_box()).contiguous();
    }
    step_with_gradients(t, lr);
  }
  void step_with_gradients(int64_t t, double lr = 0.01) {
    const at::TensorOptions scalar(at::kDouble);
    optimizer->step(t, lr, {at::ones({}, scalar), at::full({}, 0.75, scalar), at::zeros({}, at::kFloat)});
  }

  /// Masters and both moments of a parameter.
  std::array<at::Tensor, 3> kept(size_t index) const {
    return {all[index]->master, optimizer->first_moment(index), optimizer->second_moment(index)};
  }

  std::vector<std::unique_ptr<Parameter>> owned;
  std::vector<Parameter*> all;
  std::unique_ptr<AdamOptimizer> optimizer;
};

const std::vector<std::vector<int64_t>> kBf16Shapes{{5, 7}, {13}, {64, 33}, {1}, {130, 10}};

std::vector<TensorLayout> layouts_of(const std::vector<Split>& splits) {
  std::vector<TensorLayout> layouts;
  for (const auto& shape : kBf16Shapes) {
    std::vector<Split> own = splits;
    for (Split& split : own) {
      if (split.dimension && *split.dimension >= static_cast<int64_t>(shape.size())) split.dimension.reset();
    }
    layouts.emplace_back(shape, own);
  }
  return layouts;
}

struct Cut {
  const char* name;
  std::vector<Split> splits;
};

class Bf16States : public ::testing::TestWithParam<std::tuple<OptimizerImplementation, Dtypes>> {
 protected:
  OptimizerSection options() const { return optimizer_options(std::get<0>(GetParam())); }
  Dtypes dtypes() const { return std::get<1>(GetParam()); }
};

TEST_P(Bf16States, AreTheSameBitsHoweverTheTensorsAreCutOverRanks) {
  Rank whole(kBf16Shapes, layouts_of({}), {}, dtypes(), options());
  for (int64_t t = 1; t <= 3; ++t) whole.step(t);
  const std::vector<Cut> cuts{{"copies", {{"dp_replicate", 2, {}}}},
                              {"rows, unevenly", {{"dp_shard", 3, 0}}},
                              {"columns", {{"tp", 2, 1}}},
                              {"columns, then rows", {{"tp", 3, 1}, {"dp_shard", 4, 0}}},
                              {"rows, then rows", {{"tp", 2, 0}, {"dp_shard", 3, 0}}}};
  for (const Cut& cut : cuts) {
    const std::vector<TensorLayout> layouts = layouts_of(cut.splits);
    std::vector<int64_t> coordinates(cut.splits.size(), 0);
    for (bool more = true; more;) {
      Rank rank(kBf16Shapes, layouts, coordinates, dtypes(), options());
      for (int64_t t = 1; t <= 3; ++t) rank.step(t);
      for (size_t i = 0; i < kBf16Shapes.size(); ++i) {
        const std::array<at::Tensor, 3> expected = whole.kept(i), found = rank.kept(i);
        for (size_t k = 0; k < 3; ++k) {
          EXPECT_TRUE(same_bits(found[k], Rank::part_of(expected[k], rank.all[i]->shard_box()).contiguous()))
              << cut.name << ", parameter " << i << ", number " << k;
        }
      }
      more = false;
      for (size_t s = 0; s < coordinates.size() && !more; ++s) {
        more = ++coordinates[s] < cut.splits[s].parts;
        if (!more) coordinates[s] = 0;
      }
    }
  }
}

TEST_P(Bf16States, LieWithinAUnitOfTheLastPlaceOfAStepInFp32) {
  Rank rank(kBf16Shapes, layouts_of({}), {}, dtypes(), options());
  for (int64_t t = 1; t <= 3; ++t) {
    std::vector<at::Tensor> expected;
    for (size_t i = 0; i < kBf16Shapes.size(); ++i) {
      const std::array<at::Tensor, 3> kept = rank.kept(i);
      const at::Tensor g =
          as_double(normal(kBf16Shapes[i], 1000 * static_cast<uint64_t>(t) + i, at::kFloat, 0.1)) * 0.75;
      const at::Tensor m = 0.9 * as_double(kept[1]) + 0.1 * g, v = 0.95 * as_double(kept[2]) + 0.05 * g * g;
      const double correction1 = 1 - std::pow(0.9, t), correction2 = 1 - std::pow(0.95, t);
      const at::Tensor w =
          as_double(kept[0]) * (1 - 0.01 * 0.1) - 0.01 * (m / correction1) / ((v / correction2).sqrt() + 1e-8);
      expected.insert(expected.end(), {w, m, v});
    }
    rank.step(t);
    for (size_t i = 0; i < kBf16Shapes.size(); ++i) {
      for (size_t k = 0; k < 3; ++k) {
        const at::Tensor found = rank.kept(i)[k], wanted = expected[3 * i + k];
        const double unit = found.scalar_type() == at::kBFloat16 ? 0x1.01p-7 : 0x1p-18;
        EXPECT_TRUE(((as_double(found) - wanted).abs() <= wanted.abs() * unit + 1e-7).all().item<bool>())
            << "step " << t << ", parameter " << i << ", number " << k;
      }
    }
  }
}

TEST_P(Bf16States, FromAGradientInBf16AreThoseFromTheSameOneInFp32) {
  Rank wide(kBf16Shapes, layouts_of({}), {}, dtypes(), options());
  Rank narrow(kBf16Shapes, layouts_of({}), {}, dtypes(), options());
  for (int64_t t = 1; t <= 3; ++t) {
    for (size_t i = 0; i < kBf16Shapes.size(); ++i) {
      narrow.all[i]->gradient_shard = normal(kBf16Shapes[i], 1000 * static_cast<uint64_t>(t) + i, at::kBFloat16, 0.1);
      wide.all[i]->gradient_shard = narrow.all[i]->gradient_shard.to(at::kFloat);
    }
    wide.step_with_gradients(t);
    narrow.step_with_gradients(t);
  }
  for (size_t i = 0; i < kBf16Shapes.size(); ++i) {
    const std::array<at::Tensor, 3> found = narrow.kept(i), expected = wide.kept(i);
    for (size_t k = 0; k < 3; ++k) EXPECT_TRUE(same_bits(found[k], expected[k])) << i << ", number " << k;
  }
}

TEST_P(Bf16States, TakeHalfTheBytesWhereTheyAreBf16) {
  const Rank rank({{100, 10}}, {TensorLayout({100, 10})}, {}, dtypes(), options());
  EXPECT_EQ(rank.optimizer->state_bytes(), std::get<1>(dtypes()) == at::kBFloat16 ? 4000 : 8000);
}

INSTANTIATE_TEST_SUITE_P(
    Optimizer, Bf16States,
    ::testing::Combine(::testing::Values(OptimizerImplementation::for_loop, OptimizerImplementation::foreach,
                                         OptimizerImplementation::fused),
                       ::testing::Values(Dtypes{at::kBFloat16, at::kBFloat16}, Dtypes{at::kBFloat16, at::kFloat},
                                         Dtypes{at::kFloat, at::kBFloat16})));

TEST(Bf16States, AnotherSeedOrStepRoundsOtherwise) {
  const Dtypes dtypes{at::kBFloat16, at::kBFloat16};
  const auto stepped = [&](uint64_t seed, int64_t step) {
    Rank rank({{64, 64}}, {TensorLayout({64, 64})}, {}, dtypes, optimizer_options(), seed);
    rank.all[0]->gradient_shard = normal({64, 64}, 5);
    const at::TensorOptions scalar(at::kDouble);
    rank.optimizer->step(step, 0.01, {at::ones({}, scalar), at::ones({}, scalar), at::zeros({}, at::kFloat)});
    return rank.kept(0)[1].clone();  // the first moment does not depend on the step's number otherwise
  };
  EXPECT_TRUE(same_bits(stepped(1, 1), stepped(1, 1)));
  EXPECT_FALSE(same_bits(stepped(1, 1), stepped(2, 1)));
  EXPECT_FALSE(same_bits(stepped(1, 1), stepped(1, 2)));
}

TEST(Bf16States, UpdatesFarBelowTheLastPlaceAddUpAllTheSame) {
  // A hundred steps of 1e-5 from 1, where bf16 numbers lie 2^-7 apart: rounding to the nearest would stay at 1.
  const int64_t count = 20000;
  ParameterSpec spec{"w", {count}, {}};
  Parameter parameter(spec);
  parameter.master = at::ones({count}, at::kBFloat16);
  AdamOptimizer optimizer({&parameter}, {{"", 1, 1, {0}}}, with_weight_decay(0));
  const at::TensorOptions scalar(at::kDouble);
  for (int64_t t = 1; t <= 100; ++t) {
    parameter.gradient_shard = at::full({count}, -0.5);
    optimizer.step(t, 1e-5, {at::ones({}, scalar), at::ones({}, scalar), at::zeros({}, at::kFloat)});
  }
  // Each element is up by 2^-7 with probability 0.001 · 2^7: five standard deviations of the mean.
  const double mean = as_double(parameter.master).mean().item<double>();
  EXPECT_NEAR(mean - 1, 1e-3, 5 * std::sqrt(1e-3 * 0x1p-7 / static_cast<double>(count)));
}

class Bf16Copies : public ::testing::TestWithParam<int64_t> {};

TEST_P(Bf16Copies, OfFp32MastersAreWrittenInTheStep) {
  const int64_t rows = GetParam();
  ParameterSpec spec{"w", {rows}, {}};
  Parameter parameter(spec);
  parameter.master = normal({rows}, 1);
  parameter.compute_copy = at::zeros({rows}, at::kBFloat16);
  parameter.gradient_shard = normal({rows}, 2);
  AdamOptimizer optimizer({&parameter}, {{"", 1, 1, {0}}}, with_states(ElementType::bfloat16));
  const at::TensorOptions scalar(at::kDouble);
  optimizer.step(1, 0.01, {at::ones({}, scalar), at::ones({}, scalar), at::zeros({}, at::kFloat)});
  EXPECT_TRUE(parameter.compute_copy_written);
  EXPECT_TRUE(same_bits(parameter.compute_copy, parameter.master.to(at::kBFloat16)));
}

INSTANTIATE_TEST_SUITE_P(Rows, Bf16Copies, ::testing::Values(1000, 0));  // of one rank all, of another none

}  // namespace
}  // namespace titan
