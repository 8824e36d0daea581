#include "titan/train/run.h"

#include <ATen/ops/ones.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>

#include "support/job.h"
#include "support/occurrences.h"
#include "support/signals.h"
#include "titan/base/error.h"

namespace titan {
namespace {

/// Trains; what was logged is handed back.
std::string run(const JobConfig& config, ExitCode expected = ExitCode::success) {
  ::testing::internal::CaptureStdout();
  {
    const Log log;
    EXPECT_EQ(train(*build_run(config, World(), log)), expected);
  }
  return ::testing::internal::GetCapturedStdout();
}

TEST(Trainer, LearnsFromTheFirstStepsOn) {
  const TestFolder folder;
  run(small_job(folder, {"--training.steps=30", "--optimizer.lr=0.02"}));
  const std::vector<double> values = losses(folder);
  ASSERT_EQ(values.size(), 30u);
  EXPECT_NEAR(values[0], std::log(2048.0), 0.6);
  EXPECT_LT(values[29], values[0] - 1);
}

TEST(Trainer, TheSameSeedGivesTheSameBitsAndAnotherDoesNot) {
  const TestFolder first, again, other;
  run(small_job(first));
  run(small_job(again));
  run(small_job(other, {"--debug.seed=2"}));
  EXPECT_EQ(losses(first), losses(again));
  EXPECT_NE(losses(first), losses(other));
}

TEST(Trainer, MetricsAreOfTheFirstAndTheLastStepAndOfEveryLogFreqSteps) {
  const TestFolder folder;
  run(small_job(folder, {"--training.steps=7", "--metrics.log_freq=3"}));
  EXPECT_EQ(column<int64_t>(metrics_of(folder), "step"), (std::vector<int64_t>{1, 3, 6, 7}));
  EXPECT_EQ(column<int64_t>(metrics_of(folder), "tokens_seen"), (std::vector<int64_t>{64, 192, 384, 448}));
}

TEST(Trainer, ValidationComesWhenDueAndLeavesTrainingAsItWas) {
  const TestFolder with, without;
  run(small_job(with, {"--training.steps=5", "--validation.enable", "--validation.seq_len=32", "--validation.steps=2",
                       "--validation.freq=2"}));
  run(small_job(without, {"--training.steps=5"}));
  EXPECT_EQ(column<int64_t>(metrics_of(with, "validation_loss"), "step"), (std::vector<int64_t>{1, 2, 4}));
  EXPECT_EQ(losses(with), losses(without));
}

class Diverging : public ::testing::TestWithParam<std::string> {
 protected:
  JobConfig config(const TestFolder& folder, const std::string& policy) const {
    JobConfig config = small_job(
        folder, {"--training.steps=12", "--training.max_norm=0", "--training.non_finite=" + policy, GetParam()});
    config.optimizer.lr = 1e30;  // a rate that no weight survives
    return config;
  }
};

TEST_P(Diverging, AbortEndsTheRunAtTheFirstStepThatIsNotFiniteAndNamesIt) {
  const TestFolder folder;
  const JobConfig job = config(folder, "abort");
  const Log log;
  ::testing::internal::CaptureStdout();
  std::string message;
  try {
    train(*build_run(job, World(), log));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::non_finite);
    message = error.what();
  }
  ::testing::internal::GetCapturedStdout();
  const std::vector<double> finite = losses(folder);
  EXPECT_TRUE(message.starts_with("step " + std::to_string(finite.size() + 1) + ": loss ")) << message;
  EXPECT_NE(message.find("training.non_finite = \"skip\""), std::string::npos) << message;
  for (const double loss : finite) EXPECT_TRUE(std::isfinite(loss));
}

TEST_P(Diverging, SkipGoesOnToTheLastStepAndCountsWhatItSkipped) {
  const TestFolder folder;
  const std::string shown = run(config(folder, "skip"));
  const std::vector<nlohmann::json> lines = metrics_of(folder);
  ASSERT_EQ(lines.size(), 12u);
  const auto skipped = lines.back().at("skipped_steps").get<int64_t>();
  EXPECT_GT(skipped, 0);
  EXPECT_EQ(occurrences(shown, "the step is skipped"), static_cast<size_t>(skipped));
  EXPECT_NE(shown.find(std::to_string(skipped) + " steps were skipped"), std::string::npos);
  EXPECT_NE(shown.find("Training completed"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(AfterAndInBackward, Diverging,
                         ::testing::Values("--optimizer.no-early_step_in_backward",
                                           "--optimizer.early_step_in_backward"),
                         [](const auto& info) { return info.index == 0 ? "AfterBackward" : "InBackward"; });

TEST(Trainer, ARequestToStopEndsTheRunBeforeItsLastStepWithAClosingLine) {
  const TestFolder folder;
  const StopSignals signals;
  ::kill(::getpid(), SIGINT);
  await_stop_signal();
  const std::string shown = run(small_job(folder), ExitCode::interrupted);
  EXPECT_NE(shown.find("stopped by a signal after step 0 of 3"), std::string::npos) << shown;
  EXPECT_NE(shown.find("outputs are in "), std::string::npos) << shown;
}

/// While it lives, the optimizer of every step asks the host for a number.
class HostSyncInTheOptimizer {
 public:
  HostSyncInTheOptimizer()
      : handle_(at::addGlobalCallback(at::RecordFunctionCallback(ask).scopes({at::RecordScope::USER_SCOPE}))) {}
  ~HostSyncInTheOptimizer() { at::removeCallback(handle_); }
  HostSyncInTheOptimizer(const HostSyncInTheOptimizer&) = delete;
  HostSyncInTheOptimizer& operator=(const HostSyncInTheOptimizer&) = delete;

 private:
  static std::unique_ptr<at::ObserverContext> ask(const at::RecordFunction& range) {
    if (std::string_view(range.name()) == "optimizer") (void)at::ones({}).item<float>();
    return nullptr;
  }
  at::CallbackHandle handle_;
};

TEST(Trainer, AHostSyncInAStepEndsARunWhoseStepsAreWatchedAndNoOther) {
  const HostSyncInTheOptimizer sync;
  const TestFolder folder;
  EXPECT_NE(run(small_job(folder)).find("Training completed"), std::string::npos);
  const TestFolder watched;
  const JobConfig config = small_job(watched, {"--debug.sync_check"});
  const Log log;
  ::testing::internal::CaptureStdout();
  try {
    train(*build_run(config, World(), log));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bug);
    EXPECT_NE(std::string(error.what()).find("the host wait in aten::item"), std::string::npos) << error.what();
  }
  ::testing::internal::GetCapturedStdout();
}

TEST(Trainer, ATokenizerLargerThanTheVocabularyIsRefusedWithBothSizes) {
  const TestFolder folder;
  const JobConfig config = small_job(folder, {"--model.override.vocab_size=1000"});
  const Log log;
  ::testing::internal::CaptureStdout();
  try {
    build_run(config, World(), log);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_config);
    EXPECT_NE(std::string(error.what()).find("2048"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("1000"), std::string::npos) << error.what();
  }
  ::testing::internal::GetCapturedStdout();
}

}  // namespace
}  // namespace titan
