// Layouts whose ranks do not get equal parts: three and six ranks, fewer rows than shards, a vocabulary of fewer words
// than the tensor-parallel ranks could share.
#include <gtest/gtest.h>

#include <algorithm>

#include "comparison.h"

namespace titan {
namespace {

LayoutRow layout(int64_t replicate, int64_t shard, int64_t tensor) {
  LayoutRow row;
  row.replicate = replicate;
  row.shard = shard;
  row.tensor = tensor;
  row.layout = fmt::format("{}x{}x{}", replicate, shard, tensor);
  row.global_batch = 12;
  return row;
}

void expect_as_alone(const LayoutRow& row) {
  const RankResult& reference = reference_of(row);
  const std::vector<RankResult> ranks = train_ranks(row, compared_steps());
  for (const RankResult& rank : ranks) {
    EXPECT_EQ(difference(rank, reference), "");
    EXPECT_EQ(traffic_difference(rank), "");
    EXPECT_EQ(rank.losses, ranks[0].losses);
    EXPECT_EQ(rank.norms, ranks[0].norms);
  }
}

TEST(UnevenLayouts, ThreeReplicas) { expect_as_alone(layout(3, 1, 1)); }

TEST(UnevenLayouts, TwoReplicasOfThreeShards) { expect_as_alone(layout(2, 3, 1)); }

TEST(UnevenLayouts, ThreeReplicasOfTwoShards) { expect_as_alone(layout(3, 2, 1)); }

TEST(UnevenLayouts, ThreeShardsOfTwoTensorParallelRanks) {
  LayoutRow row = layout(1, 3, 2);
  row.accumulation = 2;
  row.unequal_masks = true;
  row.offload = true;
  expect_as_alone(row);
}

/// Four rows of everything: the last of three shards has none of most parameters.
LayoutRow tiny(int64_t replicate, int64_t shard, int64_t tensor) {
  LayoutRow row = layout(replicate, shard, tensor);
  row.sizes = {.dim = 4, .n_layers = 2, .n_heads = 2, .n_kv_heads = 2, .multiple_of = 2, .vocab_size = 5};
  return row;
}

int64_t empty_shards(const Plan& plan) {
  int64_t empty = 0;
  for (const WeightGroupPlan& group : plan.groups) {
    for (const ParameterPlan& parameter : group.parameters) empty += parameter.shard.numel() == 0 ? 1 : 0;
  }
  return empty;
}

TEST(UnevenLayouts, FewerRowsThanShardsWithReplicasAndTensorParallelRanks) {
  const LayoutRow row = tiny(2, 3, 2);
  int64_t empty = 0;
  for (const RankResult& rank : train_ranks(row, 0)) empty = std::max(empty, empty_shards(rank.plan));
  EXPECT_GE(empty, 10) << "a rank with hardly any rows is what this is about";
  expect_as_alone(row);
}

TEST(UnevenLayouts, FewerRowsThanShardsReducedInBf16GatherWhatTheyShould) {
  LayoutRow row = tiny(2, 3, 1);
  const RankResult& wide = reference_of(row);
  row.reduce = ElementType::bfloat16;
  const std::vector<RankResult> ranks = train_ranks(row, 2);
  for (const RankResult& rank : ranks) {
    EXPECT_EQ(traffic_difference(rank), "");
    EXPECT_EQ(rank.norms, ranks[0].norms);
    for (const auto& [name, gradient] : wide.gradients) {
      EXPECT_LE(gradient_error(rank.gradients.at(name), gradient), 0.02) << name;
    }
  }
}

TEST(UnevenLayouts, ARankWithoutAnyShard) {
  LayoutRow row = tiny(1, 6, 1);  // four rows are dealt out one by one
  const std::vector<RankResult> ranks = train_ranks(row, 0);
  const auto norms = [](const Plan& plan) { return plan.groups[1].parameters.back().shard.numel(); };
  EXPECT_EQ(norms(ranks[3].plan), 1);
  EXPECT_EQ(norms(ranks[4].plan), 0);
  expect_as_alone(row);
}

class SmallVocabularies : public ::testing::TestWithParam<bool> {};

TEST_P(SmallVocabularies, LeaveATensorParallelRankWithoutAnyWord) {
  LayoutRow row = layout(1, 1, 4);
  row.sizes = {.dim = 8, .n_layers = 2, .n_heads = 4, .n_kv_heads = 4, .multiple_of = 4, .vocab_size = 5};
  row.loss_parallel = GetParam();
  const std::vector<RankResult> ranks = train_ranks(row, 0);
  EXPECT_EQ(ranks[3].plan.groups.front().parameters[0].unsharded.numel(), 0) << "words 0-1, 2-3, 4, none";
  expect_as_alone(row);
}

INSTANTIATE_TEST_SUITE_P(UnevenLayouts, SmallVocabularies, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "LossParallel" : "LogitsGathered"; });

}  // namespace
}  // namespace titan
