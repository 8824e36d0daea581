#include "titan/job/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/config_text.h"
#include "titan/base/text.h"

namespace titan {
namespace {

LearningRateSchedule schedule_2026(int64_t steps, int64_t warmup, std::optional<double> decay_ratio = {}) {
  return {.options = {.warmup_steps = warmup, .total_steps = steps, .decay_ratio = decay_ratio}};
}

void expect_factors(const LearningRateSchedule& schedule, const std::vector<double>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(schedule.factor(static_cast<int64_t>(i) + 1), expected[i], 1e-12) << "step " << i + 1;
  }
}

TEST(LearningRate, December2024WarmsUpOverOneStepMoreAndDecaysLinearly) {
  LearningRateSchedule schedule = schedule_2026(10, 2);
  schedule.options.formula = RateFormula::december_2024;
  expect_factors(schedule, {1.0 / 3, 2.0 / 3, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125});
}

TEST(LearningRate, December2024StaysDefinedWhenEverythingIsWarmUp) {
  LearningRateSchedule schedule = schedule_2026(3, 5);
  schedule.options.formula = RateFormula::december_2024;
  expect_factors(schedule, {1.0 / 6, 2.0 / 6, 3.0 / 6});
  schedule.options.warmup_steps = 3;
  EXPECT_EQ(schedule.factor(4), 1.0);
  EXPECT_EQ(schedule.factor(5), 0.0) << "never negative";
  EXPECT_EQ(schedule.factor(50), 0.0);
}

TEST(LearningRate, WithoutARatioEverythingAfterTheWarmUpDecays) {
  expect_factors(schedule_2026(10, 2), {.5, 1, 1, 7. / 8, 6. / 8, 5. / 8, 4. / 8, 3. / 8, 2. / 8, 1. / 8});
}

TEST(LearningRate, ADecayRatioLeavesAStablePartBetween) {
  expect_factors(schedule_2026(10, 2, 0.5), {.5, 1, 1, 1, 1, 1, .8, .6, .4, .2});
  expect_factors(schedule_2026(10, 2, 0.0), {.5, 1, 1, 1, 1, 1, 1, 1, 1, 1});
}

TEST(LearningRate, WarmUpAndDecayThatDoNotFitAreCut) {
  expect_factors(schedule_2026(5, 10), {.2, .4, .6, .8, 1});
  expect_factors(schedule_2026(10, 5, 0.8), {.2, .4, .6, .8, 1, 1, .8, .6, .4, .2});
}

TEST(LearningRate, DecayStepsRoundHalvesToEven) {
  // 5 · 0.5 = 2.5 → 2 steps of decay; 7 · 0.5 = 3.5 → 4.
  expect_factors(schedule_2026(5, 0, 0.5), {1, 1, 1, 1, 0.5});
  expect_factors(schedule_2026(7, 0, 0.5), {1, 1, 1, 1, 0.75, 0.5, 0.25});
}

TEST(LearningRate, SquareRootAndCosineDecayReachTheMinimum) {
  LearningRateSchedule schedule = schedule_2026(10, 2, 0.5);
  schedule.options.decay_type = DecayType::sqrt;
  expect_factors(schedule,
                 {.5, 1, 1, 1, 1, 1, 1 - std::sqrt(.2), 1 - std::sqrt(.4), 1 - std::sqrt(.6), 1 - std::sqrt(.8)});
  schedule.options.decay_type = DecayType::cosine;
  schedule.options.min_lr_factor = 0.1;
  expect_factors(schedule,
                 {.5, 1, 1, 1, 1, 1, .1 + .9 * .5 * (1 + std::cos(M_PI * .2)), .1 + .9 * .5 * (1 + std::cos(M_PI * .4)),
                  .1 + .9 * .5 * (1 + std::cos(M_PI * .6)), .1 + .9 * .5 * (1 + std::cos(M_PI * .8))});
}

TEST(LearningRate, BeyondItsTotalStepsAScheduleStaysAtItsMinimum) {
  for (const std::optional<double> ratio : {std::optional<double>(), std::optional(0.5)}) {
    for (const DecayType type : {DecayType::linear, DecayType::sqrt, DecayType::cosine}) {
      for (const double minimum : {0.0, 0.1}) {
        LearningRateSchedule schedule = schedule_2026(10, 2, ratio);
        schedule.options.decay_type = type;
        schedule.options.min_lr_factor = minimum;
        EXPECT_GT(schedule.factor(10), minimum);
        for (const int64_t step : {11, 12, 15, 21, 1000}) EXPECT_NEAR(schedule.factor(step), minimum, 1e-12) << step;
      }
    }
  }
  EXPECT_EQ(schedule_2026(10, 2, 0.0).factor(1000), 1.0) << "without a decay it stays at its peak";
}

TEST(LearningRate, TheRateIsThePeakTimesTheFactor) {
  LearningRateSchedule schedule = schedule_2026(10, 2);
  schedule.peak = 3e-4;
  EXPECT_DOUBLE_EQ(schedule.rate(1), 1.5e-4);
  EXPECT_DOUBLE_EQ(schedule.rate(2), 3e-4);
}

struct Made {
  LearningRateSchedule schedule;
  std::vector<std::string> notes;
};

Made from_config(const std::string& text) {
  const LoadedConfig loaded = load_config_text(Schema(), text, "job.toml", {});
  EXPECT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
  Made made;
  made.schedule = make_schedule(loaded.config, made.notes);
  return made;
}

TEST(LearningRate, TheConfigNamesEveryFieldOfTheSchedule) {
  const Made made = from_config(
      "[training]\nsteps = 40\n[optimizer]\nlr = 2e-3\n[lr_scheduler]\nwarmup_steps = 4\ndecay_ratio = 0.25\n"
      "decay_type = \"cosine\"\nmin_lr_factor = 0.2\n");
  EXPECT_EQ(made.schedule.options.formula, RateFormula::warm_up_stable_decay);
  EXPECT_EQ(made.schedule.total_steps(), 40);
  EXPECT_EQ(made.schedule.options.warmup_steps, 4);
  EXPECT_EQ(made.schedule.options.decay_ratio, 0.25);
  EXPECT_EQ(made.schedule.options.decay_type, DecayType::cosine);
  EXPECT_DOUBLE_EQ(made.schedule.options.min_lr_factor, 0.2);
  EXPECT_DOUBLE_EQ(made.schedule.rate(4), 2e-3);
  EXPECT_TRUE(made.notes.empty());
}

TEST(LearningRate, AConfigOfDecember2024HasItsFormula) {
  EXPECT_EQ(from_config("[training]\nbatch_size = 4\n").schedule.options.formula, RateFormula::december_2024);
}

TEST(LearningRate, TotalStepsOfTheSchedulerMayDifferFromThoseOfTheRun) {
  EXPECT_EQ(from_config("[training]\nsteps = 10\n[lr_scheduler]\ntotal_steps = 100\nwarmup_steps = 1\n")
                .schedule.total_steps(),
            100);
}

TEST(LearningRate, WhatHasToBeCutIsSaid) {
  const Made warmup = from_config("[training]\nsteps = 5\n[lr_scheduler]\nwarmup_steps = 10\n");
  ASSERT_EQ(warmup.notes.size(), 1u);
  EXPECT_NE(warmup.notes[0].find("lr_scheduler.warmup_steps = 10"), std::string::npos) << warmup.notes[0];
  const Made decay = from_config("[training]\nsteps = 10\n[lr_scheduler]\nwarmup_steps = 5\ndecay_ratio = 0.8\n");
  ASSERT_EQ(decay.notes.size(), 1u);
  EXPECT_NE(decay.notes[0].find("takes 5"), std::string::npos) << decay.notes[0];
}

}  // namespace
}  // namespace titan
