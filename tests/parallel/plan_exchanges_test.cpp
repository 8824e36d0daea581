#include "titan/parallel/plan_exchanges.h"

#include <gtest/gtest.h>

namespace titan {
namespace {

TensorLayout layout(int64_t replicas, int64_t tensor_ranks, std::optional<int64_t> tensor_dimension, int64_t shards) {
  return TensorLayout(
      {8, 8}, {{"dp_replicate", replicas, std::nullopt}, {"tp", tensor_ranks, tensor_dimension}, {"fsdp", shards, 0}});
}

TEST(LayoutWords, NameTheAxesOfSeveralRanksInTheOrderInWhichTheyCut) {
  EXPECT_EQ(layout_words(layout(1, 1, std::nullopt, 1)), "whole");
  EXPECT_EQ(layout_words(layout(1, 1, std::nullopt, 4)), "fsdp Shard(0)");
  EXPECT_EQ(layout_words(layout(2, 2, 1, 2)), "dp_replicate Replicate, tp Shard(1), fsdp Shard(0)");
  EXPECT_EQ(layout_words(layout(1, 2, std::nullopt, 2)), "tp Replicate, fsdp Shard(0)");
}

TEST(LayoutWords, ACutWithinThePiecesOfAnotherIsStrided) {
  EXPECT_EQ(layout_words(layout(1, 2, 0, 2)), "tp Shard(0), fsdp StridedShard(0)");
}

}  // namespace
}  // namespace titan
