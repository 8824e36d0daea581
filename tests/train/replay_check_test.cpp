#include "src/train/replay_check.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace titan
