#include "titan/train/step_meter.h"

#include <gtest/gtest.h>

#include <cmath>

namespace titan {
namespace {

using std::chrono::milliseconds;

const StepMeter::Clock::time_point kStart{};

DeviceInfo a_device() { return {at::Device(at::kCPU), "made-up processor", int64_t{1} << 30}; }

StepMeter a_meter(const DeviceInfo& device) {
  return {device, /*total_steps=*/10, /*tokens_per_step=*/600, 7, /*ranks=*/1, kStart};
}

TEST(StepMeter, SpeedsAreOverTheStepsSinceTheLastReport) {
  const DeviceInfo device = a_device();
  StepMeter meter = a_meter(device);
  meter.add_step(0, false);
  StepReport first = meter.report(1, 0.1, {2.5, 1.5, false}, {}, kStart + milliseconds(3000));
  EXPECT_DOUBLE_EQ(first.tokens_per_second, 200);
  EXPECT_DOUBLE_EQ(first.step_seconds, 3);
  EXPECT_DOUBLE_EQ(first.eta_seconds, 9 * 3.0);
  for (int step = 0; step < 4; ++step) meter.add_step(0, false);
  const StepReport second = meter.report(5, 0.1, {2.5, 1.5, false}, {}, kStart + milliseconds(3000 + 2000));
  EXPECT_DOUBLE_EQ(second.tokens_per_second, 1200);
  EXPECT_DOUBLE_EQ(second.step_seconds, 0.5);
  EXPECT_DOUBLE_EQ(second.eta_seconds, 5 * 0.5);
}

TEST(StepMeter, StatisticsHaveTheirNames) {
  const DeviceInfo device = a_device();
  StepMeter meter = a_meter(device);
  Plan plan;
  plan.statistics = {{"balance", 1, 0.01}, {"load", 3, 0}};
  meter.name_statistics(plan);
  StepValues values;
  values.statistics = {0.5, 1, 2, 3};
  const StepReport report = meter.report(1, 0, values, {}, kStart);
  ASSERT_EQ(report.statistics.size(), 2u);
  EXPECT_EQ(report.statistics[0].name, "balance");
  EXPECT_EQ(report.statistics[0].values, std::vector{0.5});
  EXPECT_EQ(report.statistics[1].name, "load");
  EXPECT_EQ(report.statistics[1].values, (std::vector{1.0, 2.0, 3.0}));
}

TEST(StepMeter, AnUpdatesNumbersAreReportedOnceThereAreSome) {
  const DeviceInfo device = a_device();
  StepMeter meter = a_meter(device);
  Plan plan;
  plan.statistics = {{"of a unit"}, {"rms"}, {"singular"}};
  plan.statistics[1].is_root = true;
  plan.first_update_statistic = 1;
  meter.name_statistics(plan);
  const auto reported = [&](std::vector<double> sums) {
    StepValues values;
    values.statistics = std::move(sums);
    std::vector<std::string> names;
    for (const Statistic& statistic : meter.report(1, 0, values, {}, kStart).statistics) {
      names.push_back(fmt::format("{} {}", statistic.name, statistic.values.at(0)));
    }
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(reported({kNoStatistic, kNoStatistic, kNoStatistic}), Names{"of a unit -inf"});
  EXPECT_EQ(reported({1, 0, kNoStatistic}), (Names{"of a unit 1", "rms 0"}));
  EXPECT_EQ(reported({1, 4, 5}), (Names{"of a unit 1", "rms 2", "singular 5"}));
  EXPECT_EQ(reported({1, std::nan(""), 5}), (Names{"of a unit 1", "rms nan", "singular 5"}));
}

TEST(StepMeter, TimeSpentElsewhereIsNoTrainingTime) {
  const DeviceInfo device = a_device();
  StepMeter meter = a_meter(device);
  meter.add_step(0, false);
  meter.exclude(milliseconds(1800));
  EXPECT_DOUBLE_EQ(meter.report(1, 0, {}, {}, kStart + milliseconds(2000)).step_seconds, 0.2);
}

TEST(StepMeter, TheDataWaitIsTheMeanOfTheInterval) {
  const DeviceInfo device = a_device();
  StepMeter meter = a_meter(device);
  for (const double wait : {0.5, 0.1, 0.0}) meter.add_step(wait, false);
  EXPECT_DOUBLE_EQ(meter.report(3, 0, {}, {}, kStart + milliseconds(3000)).data_wait_seconds, 0.2);
  meter.add_step(0.25, false);
  EXPECT_DOUBLE_EQ(meter.report(4, 0, {}, {}, kStart + milliseconds(4000)).data_wait_seconds, 0.25);
}

TEST(StepMeter, TokensAndSkippedStepsAreSumsOverTheRun) {
  const DeviceInfo device = a_device();
  StepMeter meter = a_meter(device);
  for (const bool skipped : {false, true, false}) meter.add_step(0, skipped);
  meter.report(3, 0, {}, {}, kStart + milliseconds(1));
  for (const bool skipped : {true, false}) meter.add_step(0, skipped);
  const StepReport report = meter.report(5, 0, {}, {}, kStart + milliseconds(2));
  EXPECT_EQ(report.tokens_seen, 5 * 600);
  EXPECT_EQ(report.skipped_steps, 2);
  EXPECT_EQ(meter.skipped_steps(), 2);
}

TEST(StepMeter, AReportHandsOnWhatItWasGiven) {
  const DeviceInfo device = a_device();
  StepMeter meter = a_meter(device);
  meter.add_step(0, false);
  DataCounters counters;
  counters.bad_records = 4;
  counters.long_conversations = 3;
  counters.re_loops = 2;
  const StepReport report = meter.report(1, 0.125, {2.5, 1.5, false}, counters, kStart + milliseconds(1));
  EXPECT_EQ(report.step, 1);
  EXPECT_EQ(report.total_steps, 10);
  EXPECT_EQ(report.loss, 2.5);
  EXPECT_EQ(report.grad_norm, 1.5);
  EXPECT_EQ(report.learning_rate, 0.125);
  EXPECT_EQ(report.flops_per_token, 7);
  EXPECT_EQ(report.bad_records, 4);
  EXPECT_EQ(report.long_conversations, 3);
  EXPECT_EQ(report.data_loops, 2);
  EXPECT_EQ(report.memory_total, device.memory_bytes);
  EXPECT_GT(report.memory_bytes, 0);
}

TEST(StepMeter, ACpuHasNoPeakToBeMeasuredAgainstWhateverItsName) {
  const DeviceInfo device{at::Device(at::kCPU), "NVIDIA H100 lookalike", 1};
  StepMeter meter = a_meter(device);
  meter.add_step(0, false);
  EXPECT_FALSE(meter.report(1, 0, {}, {}, kStart + milliseconds(1)).peak_flops.has_value());
}

TEST(StepMeter, NoTimeAtAllGivesNumbersAndNoDivisionByZero) {
  const DeviceInfo device = a_device();
  StepMeter meter = a_meter(device);
  meter.add_step(0, false);
  const StepReport report = meter.report(1, 0, {}, {}, kStart);
  EXPECT_TRUE(std::isfinite(report.tokens_per_second));
  EXPECT_EQ(report.step_seconds, 0);
}

TEST(StepMeter, TheOnlyRanksLossIsTheLargest) {
  const DeviceInfo device{at::kCPU, "a processor", 1, {}, {}};
  StepMeter meter(device, 10, 100, 6, 1, kStart);
  StepValues values;
  values.loss = 2.5;
  const StepReport report = meter.report(1, 0, values, {}, kStart);
  EXPECT_EQ(report.max_loss, 2.5);
  EXPECT_FALSE(report.ranks.has_value());
}

}  // namespace
}  // namespace titan
