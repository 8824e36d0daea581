#include "titan/report/run_history.h"

#include <gtest/gtest.h>

#include <cmath>

namespace titan {
namespace {

TEST(Series, KeepsEveryValueWhileThereAreFew) {
  Series series;
  for (int64_t step : {1, 10, 20}) series.add(step, static_cast<double>(step));
  ASSERT_EQ(series.buckets().size(), 3u);
  EXPECT_EQ(series.buckets()[1].first, 10);
  EXPECT_EQ(series.buckets()[1].mean(), 10);
}

TEST(Series, StaysSmallAndKeepsMeansExtremesAndCounts) {
  Series series;
  constexpr int64_t kSteps = 1'000'000;
  for (int64_t step = 1; step <= kSteps; ++step)
    series.add(step, step == 777'777 ? 50.0 : static_cast<double>(step % 7));
  EXPECT_LE(series.buckets().size(), Series::kMostBuckets);
  EXPECT_GE(series.buckets().size(), Series::kMostBuckets / 2 - 1);
  int64_t count = 0, last = 0;
  double sum = 0, most = 0;
  for (const Series::Bucket& bucket : series.buckets()) {
    EXPECT_GT(bucket.first, last) << "in order, none twice";
    last = bucket.last;
    count += bucket.count;
    sum += bucket.sum;
    most = std::max(most, bucket.most);
  }
  EXPECT_EQ(last, kSteps);
  EXPECT_EQ(count, kSteps);
  EXPECT_EQ(most, 50);
  EXPECT_NEAR(sum / kSteps, 3, 1e-3);
}

TEST(Series, WhatIsNotFiniteIsNoValue) {
  Series series;
  series.add(1, std::nan(""));
  series.add(2, INFINITY);
  EXPECT_TRUE(series.empty());
}

TEST(Series, ARunThatGoesBackForgetsWhatItDoesAgain) {
  Series series;
  for (int64_t step = 1; step <= 100; ++step) series.add(step, 1);
  series.rewind(51);
  EXPECT_EQ(series.buckets().size(), 50u);
  for (int64_t step = 51; step <= 60; ++step) series.add(step, 2);
  EXPECT_EQ(series.buckets().back().first, 60);
  EXPECT_EQ(series.buckets()[50].mean(), 2);
}

TEST(Series, SmoothingFollowsALevelAndOwesNothingToTheFirstValue) {
  Series series;
  for (int64_t step = 1; step <= 400; ++step) series.add(step, step <= 200 ? 5.0 : 3.0);
  const std::vector<double> smooth = series.smoothed();
  ASSERT_EQ(smooth.size(), 400u);
  EXPECT_NEAR(smooth[0], 5, 1e-12);
  EXPECT_NEAR(smooth[399], 3, 1e-12);
  EXPECT_NEAR(smooth[199] - 4, 4 - smooth[200], 1e-12) << "half of a jump is on either side";
  EXPECT_GT(smooth[204], 3.1);
  EXPECT_LT(smooth[195], 4.9);
}

TEST(Series, SmoothingDoesNotLagBehindASlope) {
  Series series;
  for (int64_t step = 1; step <= 400; ++step)
    series.add(step, static_cast<double>(step % 2 == 0 ? step + 1 : step - 1));
  const std::vector<double> smooth = series.smoothed();
  for (size_t i = 100; i < 300; ++i) EXPECT_NEAR(smooth[i], static_cast<double>(i + 1), 0.2);
}

}  // namespace
}  // namespace titan
