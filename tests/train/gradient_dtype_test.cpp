// Whole runs with gradients of blocks in bf16 (training.gradient_dtype): they learn as with gradients in fp32, and what
// looks at gradients finds them. tests/parallel/gradient_dtype_test.cpp compares each gradient, resume_test.cpp
// resumes.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "support/job.h"
#include "support/safetensors_file.h"
#include "titan/base/log.h"
#include "titan/train/run.h"

namespace titan {
namespace {

const std::string kNarrow = "--training.gradient_dtype=bfloat16";

/// Trains a small job in bf16; what was logged.
std::string train_in_bf16(const TestFolder& folder, std::vector<std::string> more) {
  more.insert(more.begin(), "--training.mixed_precision_param=bfloat16");
  const JobConfig config = small_job(folder, more);
  ::testing::internal::CaptureStdout();
  {
    const Log log;
    EXPECT_EQ(train(*build_run(config, World(), log)), ExitCode::success);
  }
  return ::testing::internal::GetCapturedStdout();
}

// Rounding changes a gradient by up to 2^-9 of itself, so Adam's mean by 2^-9 of the mean of sizes, and the root of its
// mean square by 2^-9: together up to 2^-8 of an update where gradients of the steps have one sign, about twice that
// where they do not. To first order the loss falls by the gradient times the update, so what it has fallen by differs
// by up to 2^-7 of itself. Beside that, weights that differ in their last places flip roundings of the forward pass:
// 2^-9 of a token's loss, with a sign of its own, so 2^-9 / √tokens of the mean; four such deviations are allowed.
TEST(GradientDtype, LearnsInTenStepsWhatGradientsInFp32Do) {
  for (const std::vector<std::string>& states :
       {std::vector<std::string>{},
        std::vector<std::string>{"--training.dtype=bfloat16", "--optimizer.state_dtype=bfloat16"}}) {
    std::vector<std::string> words{"--training.steps=10", "--training.local_batch_size=4", "--training.seq_len=128",
                                   "--model.override.dim=64", "--optimizer.lr=0.003"};
    words.insert(words.end(), states.begin(), states.end());
    const TestFolder wide, narrow;
    train_in_bf16(wide, words);
    words.push_back(kNarrow);
    train_in_bf16(narrow, words);
    const std::vector<double> expected = losses(wide), found = losses(narrow);
    ASSERT_EQ(found.size(), 10u);
    EXPECT_EQ(found[0], expected[0]) << "weights of the first step are the same";
    EXPECT_NE(found, expected);
    EXPECT_LT(expected.back(), expected[0] - 0.25) << "there is something to learn";
    for (size_t i = 0; i < found.size(); ++i) {
      const double fallen = std::abs(expected[0] - expected[i]);
      const double flips = 4 * 0x1p-9 / std::sqrt(4 * 128) * expected[i];
      EXPECT_NEAR(found[i], expected[i], 0x1p-7 * fallen + flips) << "step " << i + 1;
    }
  }
}

TEST(GradientDtype, IsShownAtTheStartAndInTheTableOfWhatIsHeld) {
  const TestFolder folder;
  const std::string logged = train_in_bf16(folder, {kNarrow});
  EXPECT_NE(logged.find("compute bfloat16, gradients float32 (of blocks bfloat16), optimizer states float32"),
            std::string::npos)
      << logged;
  const auto held = metrics_of(folder, "memory_by_purpose");
  ASSERT_FALSE(held.empty());
  const auto& row = held[0]["memory_by_purpose"].at("gradients");
  EXPECT_EQ(row["planned_bytes"], row["actual_bytes"]);
}

TEST(GradientDtype, DumpsAndReplaysReadGradientsAsTheyAre) {
  const TestFolder wide, narrow;
  train_in_bf16(wide, {"--debug.dump_steps=1"});
  train_in_bf16(narrow, {"--debug.dump_steps=1", "--debug.replay_steps=2", kNarrow});
  const auto dumped = [](const TestFolder& folder) {
    std::map<std::string, at::Tensor> gradients;
    for (auto& [name, tensor] : read_safetensors(folder / "out/debug/step-1/step.safetensors")) {
      if (name.starts_with("grad.")) gradients[name] = tensor;
    }
    return gradients;
  };
  const auto expected = dumped(wide), found = dumped(narrow);
  ASSERT_FALSE(found.empty());
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, gradient] : found) {
    const at::ScalarType type = name.starts_with("grad.layers.") ? at::kBFloat16 : at::kFloat;
    EXPECT_EQ(gradient.scalar_type(), type) << name;
    EXPECT_TRUE(gradient.equal(expected.at(name).to(type))) << name;
  }
  EXPECT_EQ(losses(narrow).size(), 3u) << "the microbatch that was computed twice gave the same bits";
}

}  // namespace
}  // namespace titan
