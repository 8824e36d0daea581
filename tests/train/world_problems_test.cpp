#include "titan/train/world_problems.h"

#include <fmt/format.h>
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
  expect_told(4, words, "on 4 data-parallel ranks; use 8 or 16 (a multiple of 8), or -1");
  const std::string all = told(4, words);
  EXPECT_EQ(all.find("is no multiple of"), all.rfind("is no multiple of")) << "told once: " << all;
  const std::string odd = told(2, {"--training.local_batch_size=8", "--training.global_batch_size=9"});
  EXPECT_NE(odd.find("on 2 data-parallel ranks; use 16 (a multiple of 16), or -1"), std::string::npos) << odd;
  EXPECT_EQ(odd.find("use 8"), std::string::npos) << "what would not do on two ranks is not advised: " << odd;
}

TEST(WorldProblems, ADryRunHasAsManyRanksAsItSays) {
  EXPECT_EQ(told(1, {"--parallelism.pipeline_parallel_degree=4", "--comm.mode=fake_backend", "--comm.world_size=4"}),
            "");
  expect_told(1, {"--parallelism.tensor_parallel_degree=4", "--comm.mode=fake_backend", "--comm.world_size=6"},
              "--parallelism.tensor_parallel_degree: Invalid parallel dims: dp_replicate(1) * dp_shard(1) * cp(1) * "
              "tp(4) * pp(1) != WORLD_SIZE(6); the degrees need 4 or 8 ranks");
}

std::vector<std::string> notes(int64_t world, const std::vector<std::string>& words, const std::string& toml = "") {
  const std::vector<ConfigCheck> checks{
      [world](const JobConfig& config, const Origins& origins) { return world_problems(config, origins, world); }};
  return load_config_text(Schema(), toml, "job.toml", words, checks).notes;
}

TEST(WorldProblems, KeepingWeightsThatNoRankShardsIsToldToHaveNoEffect) {
  const std::string always = "--parallelism.fsdp_reshard_after_forward=always";
  const std::string replicated = "--parallelism.data_parallel_replicate_degree=4";
  const std::vector<std::string> found = notes(4, {always, replicated});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NE(found[0].find("has no effect here: no rank of 4 shards its weights"), std::string::npos) << found[0];
  const std::string toml = "[parallelism]\nfsdp_reshard_after_forward = \"always\"\n";
  EXPECT_NE(notes(4, {replicated}, toml).at(0).find("job.toml:2:"), std::string::npos);
  EXPECT_EQ(notes(8, {always, replicated}).size(), 0u) << "two shards";
  EXPECT_EQ(notes(4, {always, replicated, "--training.enable_cpu_offload"}).size(), 0u);
  const std::string unsharded = "--parallelism.data_parallel_shard_degree=1";
  EXPECT_EQ(notes(4, {always, replicated, unsharded}).size(), 1u) << "told once";
  EXPECT_EQ(notes(4, {always, replicated, unsharded, "--training.enable_cpu_offload"}).size(), 0u);
  ASSERT_EQ(notes(1, {always}).size(), 1u);
  EXPECT_NE(notes(1, {always})[0].find("one process holds every parameter whole"), std::string::npos);
  EXPECT_EQ(notes(1, {always, "--training.enable_cpu_offload"}).size(), 0u) << "they come from the host";
}

TEST(WorldProblems, TheFewestRanksAreThoseOfTheDegreesOrOfADryRun) {
  const auto fewest = [](const std::vector<std::string>& words) {
    return fewest_ranks(load_config_text(Schema(), "", "job.toml", words).config);
  };
  EXPECT_EQ(fewest({}), 1);
  EXPECT_EQ(fewest({"--parallelism.tensor_parallel_degree=2", "--parallelism.data_parallel_replicate_degree=3"}), 6);
  EXPECT_EQ(fewest({"--parallelism.tensor_parallel_degree=2", "--parallelism.data_parallel_shard_degree=4"}), 8);
  EXPECT_EQ(fewest({"--comm.mode=fake_backend", "--comm.world_size=32"}), 32);
}

TEST(WorldProblems, DegreesThatMultiplyToMoreRanksThanAnyRunHasAreToldAndNeverWrapAround) {
  std::vector<std::string> words;
  for (const char* degree : {"tensor", "context", "pipeline", "data_parallel_replicate", "data_parallel_shard"}) {
    const bool is_whole = std::string(degree).starts_with("data");
    words.push_back(fmt::format("--parallelism.{}{}_degree=65536", degree, is_whole ? "" : "_parallel"));
    if (words.size() < 2) continue;
    expect_told(8, words, "the degrees need more than the 1048576 ranks that a run can have");
    EXPECT_EQ(fewest_ranks(load_config_text(Schema(), "", "job.toml", words).config), 1 << 20);
  }
}

}  // namespace
}  // namespace titan
