#include "titan/report/step_profiler.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <set>

#include "titan/base/error.h"
#include "titan/report/trace_summary.h"

namespace titan {
namespace {

using Phase = ProfileCycle::Phase;

TEST(ProfileCycle, WaitsThenWarmsUpThenTracesAtTheEndOfEveryPeriod) {
  const ProfileCycle cycle{10, 3, 1};
  for (int64_t step = 1; step <= 40; ++step) {
    const int64_t place = (step - 1) % 10;
    const Phase expected = place < 6 ? Phase::wait : place < 9 ? Phase::warm_up : Phase::active;
    EXPECT_EQ(cycle.phase_of(step), expected) << step;
    EXPECT_EQ(cycle.ends_at(step), place == 9) << step;
  }
}

TEST(ProfileCycle, MayTraceEveryStep) {
  const ProfileCycle cycle{2, 0, 2};
  for (int64_t step = 1; step <= 4; ++step) EXPECT_EQ(cycle.phase_of(step), Phase::active);
}

class Profiled : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static void a_step(int64_t step) {
    const ProfileRange range("forward", "layers." + std::to_string(step));
    const at::Tensor matrix = at::ones({16, 16});
    at::mm(matrix, matrix);
  }
  std::set<std::string> names_in(int64_t iteration) const {
    std::set<std::string> names;
    const auto file = folder_ / fmt::format("iteration_{}", iteration) / "rank3_trace.json";
    for (const TraceEvent& event : read_trace(file)) names.insert(event.name);
    return names;
  }
  size_t traces() const {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++count;
    return count;
  }

  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("titan-profile-" + std::to_string(::getpid()));
  Log log_;
};

TEST_F(Profiled, StepsOfACycleAreOneTraceWithTheirRangesAndOperations) {
  StepProfiler profiler({5, 2, 2}, folder_, 3, /*cuda=*/false, log_);
  for (int64_t step = 1; step <= 11; ++step) {
    profiler.begin_step(step);
    a_step(step);
    profiler.end_step(step);
  }
  EXPECT_EQ(traces(), 2u);
  for (const int64_t last : {5, 10}) {
    const std::set<std::string> names = names_in(last);
    for (const std::string& name : {std::string("aten::mm"), fmt::format("ProfilerStep#{}", last - 1),
                                    fmt::format("ProfilerStep#{}", last), fmt::format("forward layers.{}", last)}) {
      EXPECT_TRUE(names.contains(name)) << name << " in " << last;
    }
    EXPECT_FALSE(names.contains(fmt::format("forward layers.{}", last - 2))) << "only warms up";
    EXPECT_EQ(summarize(read_trace(folder_ / fmt::format("iteration_{}", last) / "rank3_trace.json")).steps, 2);
  }
}

TEST_F(Profiled, ARunThatEndsInsideACycleKeepsWhatWasTraced) {
  StepProfiler profiler({4, 0, 3}, folder_, 3, /*cuda=*/false, log_);
  for (int64_t step = 1; step <= 3; ++step) {
    profiler.begin_step(step);
    a_step(step);
    profiler.end_step(step);
  }
  EXPECT_FALSE(std::filesystem::exists(folder_));
  profiler.finish();
  EXPECT_TRUE(names_in(3).contains("ProfilerStep#2"));
}

TEST_F(Profiled, AStepThatThrowsLeavesNoProfilerBehind) {
  for (int round = 0; round < 2; ++round) {
    StepProfiler profiler({1, 0, 1}, folder_, 3, /*cuda=*/false, log_);
    profiler.begin_step(1);
    a_step(1);
  }
  EXPECT_FALSE(at::hasCallbacks());
}

}  // namespace
}  // namespace titan
