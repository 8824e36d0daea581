#include "titan/train/world_problems.h"

#include <gtest/gtest.h>

#include "titan/config/load.h"

namespace titan {
namespace {

std::string told(int64_t world, const std::vector<std::string>& words) {
  const std::vector<ConfigCheck> checks{
      [world](const JobConfig& config, const Origins& origins) { return world_problems(config, origins, world); }};
  return format_problems(load_config_text(Schema(), "", "job.toml", words, checks).problems);
}

void expect_told(int64_t world, const std::vector<std::string>& words, const std::string& part) {
  const std::string text = told(world, words);
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(WorldProblems, DegreesThatDoNotMultiplyToTheRanksAreToldWithTheNumbersThatDo) {
  EXPECT_EQ(told(8, {"--parallelism.pipeline_parallel_degree=2", "--parallelism.tensor_parallel_degree=2"}), "");
  expect_told(6, {"--parallelism.pipeline_parallel_degree=2", "--parallelism.context_parallel_degree=2"},
              "--parallelism.pipeline_parallel_degree: Invalid parallel dims: dp_replicate(1) * dp_shard(1) * cp(2) * "
              "tp(1) * pp(2) != WORLD_SIZE(6); the degrees need 4 or 8 ranks");
  expect_told(1, {"--parallelism.pipeline_parallel_degree=4"}, "the degrees need 4 ranks");
  expect_told(8, {"--parallelism.data_parallel_shard_degree=3", "--parallelism.tensor_parallel_degree=2"},
              "the degrees need 6 ranks; or set parallelism.data_parallel_shard_degree to 4, or to -1");
}

TEST(WorldProblems, ABatchThatTheDataParallelRanksCannotShareIsToldWithTheNearestThatTheyCan) {
  const std::vector<std::string> words{"--training.local_batch_size=2", "--training.global_batch_size=12"};
  EXPECT_EQ(told(3, words), "");
  expect_told(4, words, "on 4 data-parallel ranks; use a multiple of 8, such as 8 or 16, or -1");
}

TEST(WorldProblems, ADryRunHasAsManyRanksAsItSays) {
  EXPECT_EQ(told(1, {"--parallelism.pipeline_parallel_degree=4", "--comm.mode=fake_backend", "--comm.world_size=4"}),
            "");
  expect_told(1, {"--parallelism.tensor_parallel_degree=4", "--comm.mode=fake_backend", "--comm.world_size=6"},
              "--parallelism.tensor_parallel_degree: Invalid parallel dims: dp_replicate(1) * dp_shard(1) * cp(1) * "
              "tp(4) * pp(1) != WORLD_SIZE(6); the degrees need 4 or 8 ranks");
}

}  // namespace
}  // namespace titan
