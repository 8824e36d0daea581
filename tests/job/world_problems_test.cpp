#include "titan/job/checks.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/config_text.h"

namespace titan {
namespace {

std::string problems_of(int64_t world, const std::vector<std::string>& words) {
  const std::vector<ConfigCheck> checks{check_contradictions, [world](const JobConfig& config, const Origins& origins) {
                                          return world_problems(config, origins, world);
                                        }};
  return format_problems(load_config_text(Schema(), "", "job.toml", words, checks).problems);
}

TEST(WorldProblems, DegreesThatMultiplyToTheRanksHaveNothingAgainstThem) {
  EXPECT_EQ(problems_of(8, {"--parallelism.pipeline_parallel_degree=2", "--parallelism.tensor_parallel_degree=2"}), "");
  EXPECT_EQ(problems_of(3, {"--training.local_batch_size=2", "--training.global_batch_size=12"}), "");
}

TEST(WorldProblems, ASeedCheckpointIsThatOfASingleProcess) {
  const std::vector<std::string> seed{"--checkpoint.enable", "--checkpoint.create_seed_checkpoint"};
  EXPECT_EQ(problems_of(1, seed), "");
  EXPECT_EQ(problems_of(2, seed),
            "command line: --checkpoint.create_seed_checkpoint: checkpoint.create_seed_checkpoint = true with 2 "
            "processes; start a single one; runs of any layout can begin from what it saves\n");
}

TEST(WorldProblems, ReplaysBetweenNeighboursNeedRanksThatReadDifferentSamples) {
  const std::vector<std::string> neighbours{"--debug.replay_steps=5", "--debug.replay_on_neighbours"};
  EXPECT_EQ(problems_of(2, neighbours), "");
  std::vector<std::string> tensor = neighbours;
  tensor.emplace_back("--parallelism.tensor_parallel_degree=2");
  EXPECT_EQ(
      problems_of(2, tensor),
      "command line: --debug.replay_on_neighbours: debug.replay_on_neighbours = true, but no two ranks read "
      "different samples in this layout; set it to false: debug.replay_steps alone compares each rank with itself; "
      "or give parallelism.data_parallel_shard_degree or data_parallel_replicate_degree two ranks\n");
  EXPECT_EQ(problems_of(4, tensor), "");
  EXPECT_EQ(problems_of(2, {"--debug.replay_steps=5", "--parallelism.tensor_parallel_degree=2"}), "");
}

TEST(WorldProblems, ADryRunHasAsManyRanksAsItSays) {
  EXPECT_EQ(
      problems_of(1, {"--parallelism.pipeline_parallel_degree=4", "--comm.mode=fake_backend", "--comm.world_size=4"}),
      "");
}

std::vector<std::string> notes(int64_t world, const std::vector<std::string>& words, const std::string& toml = "") {
  const std::vector<ConfigCheck> checks{check_contradictions, [world](const JobConfig& config, const Origins& origins) {
                                          return world_problems(config, origins, world);
                                        }};
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
  EXPECT_EQ(notes(4, {always, replicated, unsharded}).size(), 1u) << "reported once";
  EXPECT_EQ(notes(4, {always, replicated, unsharded, "--training.enable_cpu_offload"}).size(), 0u);
  EXPECT_EQ(notes(1, {always}).size(), 1u);
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
    EXPECT_NE(problems_of(8, words), "");
    EXPECT_EQ(fewest_ranks(load_config_text(Schema(), "", "job.toml", words).config), 1 << 20);
  }
}

}  // namespace
}  // namespace titan
