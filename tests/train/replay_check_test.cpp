#include "src/train/replay_check.h"

#include <gtest/gtest.h>

#include "titan/plan/description.h"

namespace titan {
namespace {

TEST(ReplayCheck, WhatDiffersIsNamedInItsOrder) {
  const ReplayHashes first{{"the loss", 1}, {"a", 2}, {"b", 3}};
  EXPECT_TRUE(unequal_results(first, first).empty());
  ReplayHashes second = first;
  second[0].second = 9, second[2].second = 8;
  EXPECT_EQ(unequal_results(first, second), (std::vector<std::string>{"the loss", "b"}));
}

TEST(ReplayCheck, OneNumberStandsForAllResults) {
  const ReplayHashes first{{"the loss", 1}, {"a", 2}};
  ReplayHashes second = first;
  EXPECT_EQ(combined(first), combined(second));
  second[1].second = 3;
  EXPECT_NE(combined(first), combined(second));
}

TEST(ReplayCheck, RanksThatHoldOtherPartsOfAWeightAreNotCompared) {
  const DeviceMesh mesh({.dp_replicate = 2, .dp_shard = 2, .tp = 2}, 8);
  ModelDescription model;
  model.units.resize(2);
  model.units[0].parameters = {{.name = "weight", .shape = {4, 4}, .initialiser = {}, .splits = {{MeshAxis::tp, 0}}}};
  using Sets = std::vector<std::vector<int64_t>>;
  EXPECT_EQ(ranks_alike(model, mesh), (Sets{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  model.units[1].parameters = {
      {.name = "experts", .shape = {4, 4, 4}, .initialiser = {}, .splits = {{MeshAxis::dp_shard, 0}}}};
  EXPECT_EQ(ranks_alike(model, mesh), (Sets{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
}

}  // namespace
}  // namespace titan
