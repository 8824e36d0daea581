// Training as the command line does it: what it prints, writes and returns.
#include <gtest/gtest.h>

#include <filesystem>

#include "run.h"
#include "support/job.h"
#include "titan/base/filesystem.h"

namespace titan {
namespace {

Outcome train(const TestFolder& folder, const std::vector<std::string>& more = {}) {
  return run(small_job_words(folder, more));
}

TEST(TrainCommand, TrainsAndSaysWhereTheOutputsLie) {
  const TestFolder folder;
  const Outcome outcome = train(folder);
  EXPECT_EQ(outcome.code, 0) << outcome.errors;
  EXPECT_EQ(outcome.errors, "");
  EXPECT_EQ(metrics_of(folder).size(), 3u);
  EXPECT_TRUE(holds(outcome.output, "Training completed"));
  EXPECT_TRUE(outcome.output.ends_with(folder / "out" + "/report.html\n")) << outcome.output;
}

TEST(TrainCommand, TheStartTellsDeviceModelMemoryAndTextBeforeTheFirstStep) {
  const TestFolder folder;
  const std::string shown = train(folder, {"--training.steps=1"}).output;
  const size_t first_step = shown.find("step:  1");
  ASSERT_NE(first_step, std::string::npos) << shown;
  for (const char* line :
       {"CPU: ", "TikTokenizer built: #words 2048", "Building llama3 debugmodel with dim 24", "total parameters",
        "dtypes: parameters float32, compute float32", "memory by purpose (predicted)",
        "first 32 tokens of the first batch: <|begin_of_text|>", "64 tokens per step"}) {
    EXPECT_LT(shown.find(line), first_step) << line;
  }
  const size_t actual = shown.find("memory by purpose, at the peak of the first step");
  EXPECT_GT(actual, first_step);
  EXPECT_NE(actual, std::string::npos);
}

TEST(TrainCommand, TheWordTrainMayBeGivenOrLeftOut) {
  const TestFolder with, without;
  std::vector<std::string> words{"train"};
  for (const std::string& word : small_job_words(with)) words.push_back(word);
  EXPECT_EQ(run(words).code, 0);
  EXPECT_EQ(train(without).code, 0);
  EXPECT_EQ(column<double>(metrics_of(with), "loss"), column<double>(metrics_of(without), "loss"));
}

TEST(TrainCommand, TheConfigInForceIsSavedWhereItWasAskedForAndTrainsTheSameAgain) {
  const TestFolder folder, again;
  ASSERT_EQ(train(folder, {"--job.save_config_file=kept/used.toml", "--optimizer.lr=0.002"}).code, 0);
  const std::string saved = folder / "out/kept/used.toml";
  EXPECT_TRUE(holds(read_file(saved), "lr = 0.002"));
  EXPECT_EQ(run({saved, "--job.dump_folder=" + again / "out"}).code, 0);
  EXPECT_EQ(column<double>(metrics_of(again), "loss"), column<double>(metrics_of(folder), "loss"));
}

}  // namespace
}  // namespace titan
