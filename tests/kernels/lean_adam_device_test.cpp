#include "support/cuda_on_host.h"
// The kernel's header needs the names above.
#include "titan/kernels/lean_adam_device.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <type_traits>

namespace titan {
namespace {

constexpr AdamConstants kConstants{0.9f, 0.95f, 1e-8f, 2e-3f, 1.3f, 0.999f, 0.f};

/// Memory of a step, drawn from a seed; `Weight` and `Moment` are float, or uint16_t for bf16.
template <class Weight, class Moment>
struct Memory {
  Memory(int64_t count, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < count; ++i) {
      add(weight, normal(random));
      gradient.push_back(normal(random));
      add(first, 0.1f * normal(random));
      add(second, std::abs(normal(random)));
    }
  }
  template <class T>
  static void add(std::vector<T>& numbers, float value) {
    T stored{};
    lean_store(value, 0, stored);
    numbers.push_back(stored);
  }

  std::vector<Weight> weight;
  std::vector<float> gradient;
  std::vector<Moment> first, second;
};

/// As the launcher does: pairs where the runs are even.
template <class Weight, class Moment>
void step(Memory<Weight, Moment>& memory, const RoundingPlace& place, bool pairwise, float skip = 0) {
  const auto count = static_cast<int64_t>(memory.weight.size());
  const int64_t pairs = pairwise ? count / 2 : 0;
  const float clip = 0.5f;
  const auto blocks = static_cast<unsigned>((count - pairs + 63) / 64);
  cuda_on_host::launch(lean_adam_kernel<Weight, Moment>, blocks, 64, 3, memory.weight.data(), memory.gradient.data(),
                       memory.first.data(), memory.second.data(), count, pairs, RoundingKey{11, 22}, place, kConstants,
                       &clip, &skip);
}

/// Element by element, from the header's formulas.
template <class Weight, class Moment>
void expect_step(const Memory<Weight, Moment>& before, const Memory<Weight, Moment>& after,
                 const RoundingPlace& place) {
  for (size_t i = 0; i < before.weight.size(); ++i) {
    Memory<Weight, Moment> one(1, 0);
    one.weight[0] = before.weight[i];
    one.first[0] = before.first[i];
    one.second[0] = before.second[i];
    lean_adam_element(one.weight[0], before.gradient[i], one.first[0], one.second[0], 0.5f, kConstants,
                      rounding_chances({11, 22}, place.index(static_cast<int64_t>(i))));
    ASSERT_EQ(after.weight[i], one.weight[0]) << i;
    ASSERT_EQ(after.first[i], one.first[0]) << i;
    ASSERT_EQ(after.second[i], one.second[0]) << i;
  }
}

template <class Weight, class Moment>
void expect_steps() {
  for (const int64_t count : {1, 2, 63, 64, 65, 130, 257}) {
    for (const RoundingPlace place : {RoundingPlace{0, count, 1}, RoundingPlace{10, 6, 20}, RoundingPlace{7, 5, 9}}) {
      for (const bool pairwise : {false, true}) {
        if (pairwise && place.first % 2 != 0) continue;  // the launcher takes no pairs there
        const Memory<Weight, Moment> before(count, 5);
        Memory<Weight, Moment> after = before;
        step(after, place, pairwise);
        expect_step(before, after, place);
      }
    }
  }
}

TEST(LeanAdamKernel, StepsEveryElementWithItsOwnChancesInPairsAndAlone) {
  expect_steps<uint16_t, uint16_t>();
  expect_steps<uint16_t, float>();
  expect_steps<float, uint16_t>();
}

TEST(LeanAdamKernel, FollowsTheFormulaInFloat64) {
  const Memory<float, float> before(300, 9);
  Memory<float, float> after = before;
  step(after, {0, 300, 1}, true);
  for (size_t i = 0; i < 300; ++i) {
    const double g = 0.5 * before.gradient[i];
    const double m = 0.9 * before.first[i] + 0.1 * g, v = 0.95 * before.second[i] + 0.05 * g * g;
    EXPECT_NEAR(after.first[i], m, 1e-6);
    EXPECT_NEAR(after.second[i], v, 1e-6);
    EXPECT_NEAR(after.weight[i], 0.999 * before.weight[i] - 2e-3 * m / (1.3 * std::sqrt(v) + 1e-8), 1e-6);
  }
}

TEST(LeanAdamKernel, LeavesEveryBitWhereTheStepIsSkipped) {
  const Memory<uint16_t, uint16_t> before(100, 2);
  Memory<uint16_t, uint16_t> after = before;
  step(after, {0, 100, 1}, true, 1.f);
  EXPECT_EQ(after.weight, before.weight);
  EXPECT_EQ(after.first, before.first);
  EXPECT_EQ(after.second, before.second);
}

TEST(RoundKernel, RoundsWithTheChancesOfTheStep) {
  const std::vector<float> values = Memory<float, float>(200, 4).weight;
  const float go = 0, skip = 1;
  const RoundingPlace place{3, 7, 11};
  for (const KeptNumber number : {KeptNumber::weight, KeptNumber::first_moment, KeptNumber::second_moment}) {
    std::vector<uint16_t> rounded(200, 0);
    cuda_on_host::launch(round_kernel, 4, 64, 1, values.data(), rounded.data(), int64_t{200}, RoundingKey{1, 2}, place,
                         number, &skip);
    EXPECT_EQ(rounded, std::vector<uint16_t>(200, 0));
    cuda_on_host::launch(round_kernel, 4, 64, 1, values.data(), rounded.data(), int64_t{200}, RoundingKey{1, 2}, place,
                         number, &go);
    for (size_t i = 0; i < 200; ++i) {
      uint32_t bits;
      std::memcpy(&bits, &values[i], sizeof(bits));
      const uint32_t chance = rounding_chances({1, 2}, place.index(static_cast<int64_t>(i))).of(number);
      EXPECT_EQ(rounded[i], round_by_chance(bits, chance)) << i;
    }
  }
}

}  // namespace
}  // namespace titan
