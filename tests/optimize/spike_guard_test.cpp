#include "titan/optimize/spike_guard.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace titan {
namespace {

struct Verdict {
  bool spike;
  double loss, norm;  // deviations
};

Verdict judge(SpikeGuard& guard, double loss, double norm) {
  const at::Tensor found = guard.judge(at::scalar_tensor(loss, at::kDouble), at::scalar_tensor(norm, at::kDouble));
  return {found[0].item<double>() != 0, found[1].item<double>(), found[2].item<double>()};
}

SpikeGuard a_guard(int64_t window = 16, double threshold = 5) {
  return SpikeGuard(window, threshold, /*skips=*/true, at::kCPU);
}

/// Loss around 3 ± 0.1 and norm around 1 ± 0.05 from one seed.
class Ordinary {
 public:
  std::pair<double, double> next() { return {3 + 0.1 * normal_(random_), 1 + 0.05 * normal_(random_)}; }

 private:
  std::mt19937_64 random_{7};
  std::normal_distribution<double> normal_;
};

TEST(SpikeGuard, DeviationsAreThoseOfTheWindowByTheTextbook) {
  SpikeGuard guard = a_guard(4, 100);
  std::vector<double> losses{9, 3, 3.5, 2, 2.5}, norms{7, 1, 1, 2, 4};  // the first has left the window
  for (size_t i = 0; i < losses.size(); ++i) judge(guard, losses[i], norms[i]);
  auto deviations = [](const std::vector<double>& all, double x) {
    double mean = 0, variance = 0;
    for (size_t i = 1; i < all.size(); ++i) mean += all[i] / 4;
    for (size_t i = 1; i < all.size(); ++i) variance += (all[i] - mean) * (all[i] - mean) / 4;
    return (x - mean) / std::sqrt(variance);
  };
  const Verdict found = judge(guard, 4, 0.5);
  EXPECT_NEAR(found.loss, deviations(losses, 4), 1e-12);
  EXPECT_NEAR(found.norm, deviations(norms, 0.5), 1e-12);
}

TEST(SpikeGuard, ASpikeOfEitherIsFoundAndOrdinaryStepsAreNot) {
  SpikeGuard guard = a_guard();
  Ordinary steps;
  for (int i = 0; i < 200; ++i) {
    const auto [loss, norm] = steps.next();
    EXPECT_FALSE(judge(guard, loss, norm).spike) << i;
  }
  EXPECT_TRUE(judge(guard, 6, 1).spike);
  for (int i = 0; i < 20; ++i) {
    const auto [loss, norm] = steps.next();
    EXPECT_FALSE(judge(guard, loss, norm).spike) << "what follows a spike is not one: " << i;
  }
  EXPECT_TRUE(judge(guard, 3, 9).spike);
  EXPECT_FALSE(judge(guard, 0.1, 0.001).spike) << "far below is no spike";
}

TEST(SpikeGuard, AHugeSpikeDoesNotHideTheNext) {
  SpikeGuard guard = a_guard(128, 6);
  Ordinary steps;
  for (int i = 0; i < 150; ++i) {
    const auto [loss, norm] = steps.next();
    judge(guard, i == 140 ? 1e6 : loss, i == 145 ? 1e6 : norm);
  }
  EXPECT_TRUE(judge(guard, 5, 1).spike) << "20 deviations";
  EXPECT_TRUE(judge(guard, 3, 2).spike);
}

TEST(SpikeGuard, NothingIsJudgedBeforeHalfOfTheWindowIsFull) {
  SpikeGuard guard = a_guard(16);
  Ordinary steps;
  for (int i = 0; i < 7; ++i) {
    const auto [loss, norm] = steps.next();
    judge(guard, loss, norm);
  }
  EXPECT_FALSE(judge(guard, 50, 50).spike);
  EXPECT_FALSE(judge(guard, 60, 60).spike) << "50 has widened the window";
}

TEST(SpikeGuard, ALastingChangeEndsBeingASpike) {
  SpikeGuard guard = a_guard();
  Ordinary steps;
  for (int i = 0; i < 32; ++i) {
    const auto [loss, norm] = steps.next();
    judge(guard, loss, norm);
  }
  int spikes = 0;
  for (int i = 0; i < 32; ++i) {
    const auto [loss, norm] = steps.next();
    spikes += judge(guard, loss + 5, norm).spike ? 1 : 0;
  }
  EXPECT_GE(spikes, 1);
  EXPECT_LE(spikes, 8);
}

TEST(SpikeGuard, ALastingChangeEndsBeingASpikeWithAnyThresholdAndFromZero) {
  for (const double threshold : {1.0, 6.0}) {
    SpikeGuard guard = a_guard(16, threshold);
    for (int i = 0; i < 32; ++i) judge(guard, 3, 0);
    for (int i = 0; i < 200; ++i) judge(guard, 4, 1);
    EXPECT_FALSE(judge(guard, 4, 1).spike) << threshold;
  }
}

TEST(SpikeGuard, WhatIsNotFiniteIsNoSpikeAndLeavesNoTrace) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  SpikeGuard guard = a_guard(), other = a_guard();
  Ordinary steps;
  for (int i = 0; i < 15; ++i) {
    const auto [loss, norm] = steps.next();
    judge(guard, loss, norm);
    judge(other, loss, norm);
  }
  EXPECT_FALSE(judge(guard, kInfinity, std::nan("")).spike);
  const Verdict with = judge(guard, 4, 2), without = judge(other, 4, 2);
  EXPECT_EQ(with.loss, without.loss);
  EXPECT_EQ(with.norm, without.norm);
}

TEST(SpikeGuard, ValuesThatNeverDifferMakeNoSpikeOfARounding) {
  SpikeGuard guard = a_guard();
  for (int i = 0; i < 16; ++i) judge(guard, 3, 1);
  EXPECT_FALSE(judge(guard, 3 + 1e-9, 1).spike);
  EXPECT_TRUE(judge(guard, 3.1, 1).spike);
}

TEST(SpikeGuard, GoesOnFromItsStateAsIfNothingHadHappened) {
  SpikeGuard whole = a_guard();
  Ordinary steps;
  for (int i = 0; i < 37; ++i) {
    const auto [loss, norm] = steps.next();
    judge(whole, i == 20 ? std::nan("") : loss, norm);
  }
  SpikeGuard resumed = a_guard();
  ASSERT_TRUE(resumed.restore(whole.state()));
  for (int i = 0; i < 40; ++i) {
    const auto [loss, norm] = steps.next();
    const Verdict a = judge(whole, loss, norm), b = judge(resumed, loss, norm);
    EXPECT_EQ(a.loss, b.loss) << i;
    EXPECT_EQ(a.norm, b.norm) << i;
  }
}

TEST(SpikeGuard, AStateOfAnotherWindowIsNotTaken) {
  SpikeGuard guard = a_guard(16), other = a_guard(8);
  judge(guard, 3, 1);
  EXPECT_FALSE(other.restore(guard.state()));
  EXPECT_EQ(other.state().steps, 0);
}

}  // namespace
}  // namespace titan
