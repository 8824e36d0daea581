// A run that is ended and resumes from its checkpoint is the run that was never ended, bit for bit.
#include <gtest/gtest.h>

#include "saved_jobs.h"

namespace titan {
namespace {

using test::run, test::run_together, test::norms, test::saved, test::data_files;

class Resume : public ::testing::TestWithParam<std::vector<std::string>> {};

TEST_P(Resume, TwiceInARowGivesTheBitsOfTheUnbrokenRun) {
  const TestFolder whole, broken;
  run(whole, GetParam());
  for (const char* steps : {"--training.steps=4", "--training.steps=6", "--training.steps=8"}) {
    std::vector<std::string> more = GetParam();
    more.push_back(steps);
    run(broken, more);
  }
  EXPECT_EQ(losses(broken), losses(whole));
  EXPECT_EQ(norms(broken), norms(whole));
  EXPECT_EQ(column<int64_t>(metrics_of(broken), "tokens_seen"), column<int64_t>(metrics_of(whole), "tokens_seen"));
  for (const int64_t step : {4, 6, 8}) EXPECT_TRUE(saved(broken, step) == saved(whole, step)) << step;
}

INSTANTIATE_TEST_SUITE_P(
    Ways, Resume,
    ::testing::Values(std::vector<std::string>{}, std::vector<std::string>{"--checkpoint.async_mode=async"},
                      std::vector<std::string>{"--training.global_batch_size=6", "--checkpoint.async_mode=async"},
                      std::vector<std::string>{"--training.mixed_precision_param=bfloat16"},
                      std::vector<std::string>{"--training.dtype=bfloat16", "--optimizer.state_dtype=bfloat16"},
                      std::vector<std::string>{"--optimizer.state_dtype=bfloat16", "--optimizer.offload",
                                               "--activation_checkpoint.mode=full", "--activation_checkpoint.offload"},
                      std::vector<std::string>{"--optimizer.early_step_in_backward", "--training.max_norm=0"},
                      std::vector<std::string>{"--training.mixed_precision_param=bfloat16",
                                               "--training.gradient_dtype=bfloat16"},
                      std::vector<std::string>{"--training.mixed_precision_param=bfloat16", "--training.dtype=bfloat16",
                                               "--optimizer.state_dtype=bfloat16", "--training.gradient_dtype=bfloat16",
                                               "--optimizer.early_step_in_backward", "--training.max_norm=0"},
                      std::vector<std::string>{"--training.mixed_precision_param=bfloat16", "--optimizer.name=Muon",
                                               "--training.gradient_dtype=bfloat16"}));

class ResumeTogether : public ::testing::TestWithParam<std::pair<int64_t, std::vector<std::string>>> {};

TEST_P(ResumeTogether, GivesTheBitsOfTheUnbrokenRunOnEveryRank) {
  const auto& [ranks, layout] = GetParam();
  const TestFolder whole, broken;
  std::vector<std::string> half = layout;
  half.push_back("--training.steps=4");
  run_together(whole, ranks, layout);
  run_together(broken, ranks, half);
  run_together(broken, ranks, layout);
  EXPECT_EQ(losses(whole).size(), 8u);
  EXPECT_EQ(losses(broken), losses(whole));
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const std::string file = fmt::format("out/checkpoint/step-8/__{}_0.distcp", rank);
    EXPECT_TRUE(read_file(broken / file) == read_file(whole / file)) << file;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ResumeTogether,
    ::testing::Values(std::pair(int64_t{2}, std::vector<std::string>{"--parallelism.data_parallel_shard_degree=2",
                                                                     "--checkpoint.async_mode=async"}),
                      std::pair(int64_t{2}, std::vector<std::string>{"--parallelism.data_parallel_shard_degree=1",
                                                                     "--parallelism.data_parallel_replicate_degree=2"}),
                      std::pair(int64_t{2}, std::vector<std::string>{"--parallelism.tensor_parallel_degree=2"}),
                      std::pair(int64_t{2}, std::vector<std::string>{"--parallelism.data_parallel_shard_degree=2",
                                                                     "--training.dtype=bfloat16",
                                                                     "--optimizer.state_dtype=bfloat16"}),
                      std::pair(int64_t{2}, std::vector<std::string>{"--parallelism.pipeline_parallel_degree=2"}),
                      std::pair(int64_t{2}, std::vector<std::string>{"--parallelism.pipeline_parallel_degree=2",
                                                                     "--model.name=llama3_2", "--model.flavor=1B",
                                                                     "--model.override.vocab_size=2048",
                                                                     "--model.override.n_kv_heads=2"}),
                      std::pair(int64_t{4}, std::vector<std::string>{"--parallelism.tensor_parallel_degree=2",
                                                                     "--parallelism.data_parallel_shard_degree=2",
                                                                     "--checkpoint.async_mode=async"})));

TEST(Resuming, AStepThatIsOverLongBeforeTheWriteOfTheLastOneDoesNotReachIntoIt) {
  // 150 MB of state, steps of a few milliseconds: each next step is made while the former state is being written.
  const std::vector<std::string> large{"--model.override.vocab_size=65536",
                                       "--model.override.dim=96",
                                       "--training.local_batch_size=1",
                                       "--training.seq_len=8",
                                       "--training.steps=2",
                                       "--checkpoint.interval=1"};
  for (const std::vector<std::string>& way :
       {std::vector<std::string>{}, {"--optimizer.early_step_in_backward", "--training.max_norm=0"}}) {
    std::vector<std::string> more = large;
    more.insert(more.end(), way.begin(), way.end());
    const TestFolder beside, waiting;
    run(waiting, more);
    more.emplace_back("--checkpoint.async_mode=async");
    run(beside, more);
    for (const int64_t step : {1, 2}) {
      const std::vector<std::string> files = data_files(waiting, step);
      EXPECT_EQ(data_files(beside, step), files);
      for (const std::string& file : files) {
        const auto path = fmt::format("out/checkpoint/step-{}/{}", step, file);
        EXPECT_TRUE(read_file(beside / path) == read_file(waiting / path)) << path;
      }
    }
  }
}

TEST(ResumeTogether, AnotherNumberOfRanksGoesOnWithTheSameSamplesAndWeights) {
  // The global batch stays; two ranks hold it half and half, one holds it all.
  const TestFolder whole, changed;
  run(whole, {"--training.global_batch_size=4"});
  run_together(changed, 2, {"--training.global_batch_size=4", "--training.steps=4"});
  run(changed, {"--training.global_batch_size=4"});
  ASSERT_EQ(losses(changed).size(), 8u);
  for (size_t step = 0; step < 8; ++step) EXPECT_NEAR(losses(changed)[step], losses(whole)[step], 1e-4) << step;
}

}  // namespace
}  // namespace titan
