#include "titan/base/text.h"

#include <gtest/gtest.h>

namespace titan {
namespace {

TEST(Text, EditDistanceCountsASwapOfNeighboursAsOneEdit) {
  EXPECT_EQ(edit_distance("steps", "steps"), 0u);
  EXPECT_EQ(edit_distance("step", "steps"), 1u);
  EXPECT_EQ(edit_distance("setps", "steps"), 1u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

TEST(Text, NearestPutsTheBestFirstAndLeavesOutTheUnrelated) {
  std::vector<std::string> names{"steps", "seq_len", "seed", "optimizer"};
  auto best = nearest("stesp", names);
  ASSERT_FALSE(best.empty());
  EXPECT_EQ(best[0], "steps");
  EXPECT_TRUE(nearest("zzzzzz", names).empty());
}

TEST(Text, NearestDoesNotMindTheCase) {
  std::vector<std::string> names{"Adam", "AdamW"};
  EXPECT_EQ(nearest("adamw", names).at(0), "AdamW");
}

TEST(Text, NumbersAreWrittenAsPeopleReadThem) {
  EXPECT_EQ(with_thousands(0), "0");
  EXPECT_EQ(with_thousands(999), "999");
  EXPECT_EQ(with_thousands(8030261248), "8,030,261,248");
  EXPECT_EQ(with_thousands(-1234), "-1,234");
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(1536), "1.50 KiB");
  EXPECT_EQ(human_count(8030261248.0), "8.03 B");
  EXPECT_EQ(human_duration(4.24), "4.2s");
  EXPECT_EQ(human_duration(725), "12m05s");
  EXPECT_EQ(human_duration(13260), "3h41m");
}

TEST(Text, SplitKeepsEmptyPartsAndTrimRemovesBlanks) {
  EXPECT_EQ(split("a,,b", ','), (std::vector<std::string>{"a", "", "b"}));
  EXPECT_EQ(split("", ','), (std::vector<std::string>{""}));
  EXPECT_EQ(trim("  a b \n"), "a b");
}

}  // namespace
}  // namespace titan
