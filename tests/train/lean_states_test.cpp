// Whole runs with weights and moments in bf16: they learn as runs in fp32 do, resume to the same bits, and are refused
// a checkpoint of other dtypes with what to do.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "job.h"
#include "titan/base/error.h"
#include "titan/base/log.h"
#include "titan/train/trainer.h"

namespace titan {
namespace {

const std::vector<std::string> kLean{"--training.dtype=bfloat16", "--optimizer.state_dtype=bfloat16"};

std::vector<double> losses_of(const JobConfig& config, const TestFolder& folder) {
  ::testing::internal::CaptureStdout();
  {
    const Log log;
    EXPECT_EQ(Trainer(config, World(), log).run(), ExitCode::success);
  }
  ::testing::internal::GetCapturedStdout();
  return column<double>(metrics_of(folder, "loss"), "loss");
}

double mean_of_last(const std::vector<double>& values, int64_t count) {
  return std::accumulate(values.end() - count, values.end(), 0.0) / static_cast<double>(count);
}

// scripts/bench/lean_states.sh is the long version of this; its result is in docs/benchmarks/lean_states.md.
TEST(LeanRuns, LearnInFiftyStepsWhatFp32StatesDo) {
  const auto run = [](const std::vector<std::string>& states) {
    const TestFolder folder;
    std::vector<std::string> words{"--training.steps=50",    "--training.local_batch_size=4",
                                   "--training.seq_len=128", "--model.override.dim=64",
                                   "--optimizer.lr=0.003",   "--lr_scheduler.warmup_steps=5"};
    words.insert(words.end(), states.begin(), states.end());
    return losses_of(small_job(folder, words), folder);
  };
  const std::vector<double> wide = run({}), lean = run(kLean);
  ASSERT_EQ(lean.size(), 50u);
  EXPECT_LT(mean_of_last(wide, 10), wide[0] - 2) << "there is something to learn";
  EXPECT_NEAR(mean_of_last(lean, 10) / mean_of_last(wide, 10), 1, 0.01);
  EXPECT_NE(lean, wide);
}

TEST(LeanRuns, GoOnFromTheirCheckpointsAndAreToldWhyTheyCannotFromOthers) {
  const TestFolder folder;
  const auto words = [&](const std::string& steps, std::vector<std::string> more) {
    more.insert(more.end(), {"--checkpoint.enable", "--checkpoint.interval=2", "--training.steps=" + steps,
                             "--checkpoint.last_save_model_only=false"});
    return small_job(folder, more);
  };
  losses_of(words("2", kLean), folder);
  for (const std::string other : {"--optimizer.state_dtype=float32", "--training.dtype=float32"}) {
    std::vector<std::string> mixed = kLean;
    mixed.push_back(other);
    const JobConfig config = words("4", mixed);
    ::testing::internal::CaptureStdout();
    try {
      const Log log;
      Trainer(config, World(), log).run();
      ADD_FAILURE() << "it was taken";
    } catch (const Error& error) {
      const std::string option = other.substr(2, other.find('=') - 2);
      EXPECT_NE(std::string(error.what()).find(option + " = \"bfloat16\""), std::string::npos) << error.what();
      EXPECT_EQ(error.code(), ExitCode::storage) << error.what();
    }
    ::testing::internal::GetCapturedStdout();
  }
  EXPECT_EQ(losses_of(words("4", kLean), folder).size(), 4u);
}

}  // namespace
}  // namespace titan
