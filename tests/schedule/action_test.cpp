#include "titan/schedule/action.h"

#include <gtest/gtest.h>

namespace titan {
namespace {

TEST(Action, EveryWordIsReadAndWrittenBack) {
  for (const char* word : {"0F0", "12B31", "3I7", "3W7", "1UNSHARD", "0RESHARD", "2REDUCE_GRAD", "3SEND_F1", "4RECV_F1",
                           "3SEND_B1", "2RECV_B1", "(0F4;3B1)OVERLAP_F_B", "(0SEND_F1;0RECV_B0;3RECV_F2)BATCH"}) {
    const std::optional<Action> action = parse_action(word);
    ASSERT_TRUE(action) << word;
    EXPECT_EQ(to_string(*action), word);
  }
}

TEST(Action, SpacesAroundAWordAndItsPartsDoNotMatter) {
  EXPECT_EQ(parse_action("  2F0 "), parse_action("2F0"));
  EXPECT_EQ(parse_action("( 0F4 ; 3B1 )OVERLAP_F_B"), parse_action("(0F4;3B1)OVERLAP_F_B"));
}

TEST(Action, WordsThatAreNoActionAreRefused) {
  for (const char* word : {"",
                           "F0",
                           "0",
                           "0F",
                           "0X1",
                           "0f0",
                           "0F0x",
                           "0F-1",
                           "0FF0",
                           "1UNSHARD0",
                           "0SEND_F",
                           "123456F0",
                           "0F123456",
                           "0F0 1F0",
                           "(0F0)OVERLAP_F_B",
                           "(0F0;1B0)",
                           "(0F0;1B0)F",
                           "(0F0;1B0",
                           "0F0;1B0",
                           "(0F0;1SEND_F0)OVERLAP_F_B",
                           "(0F0;1B0)BATCH",
                           "((0F0;1B0)OVERLAP_F_B;2F0)OVERLAP_F_B",
                           "OVERLAP_F_B",
                           "0OVERLAP_F_B0"}) {
    EXPECT_FALSE(parse_action(word)) << word;
  }
}

TEST(Action, LeavesAreThePartsOfAMergedActionAndAnyOtherItself) {
  const Action pair = *parse_action("(0F4;3B1)OVERLAP_F_B");
  ASSERT_EQ(leaves(pair).size(), 2u);
  EXPECT_EQ(leaves(pair)[1], *parse_action("3B1"));
  const Action plain = *parse_action("1UNSHARD");
  ASSERT_EQ(leaves(plain).size(), 1u);
  EXPECT_EQ(leaves(plain)[0], plain);
}

TEST(ScheduleCsv, WhatIsWrittenIsReadBack) {
  const std::string text = "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,1F0,(1B0;1F1)OVERLAP_F_B\n";
  const CsvTable read = parse_csv(text, "a.csv");
  EXPECT_TRUE(read.problems.empty());
  EXPECT_EQ(to_csv(read.table), text);
}

TEST(ScheduleCsv, AnEmptyRowBetweenOthersIsNamedAndOneAfterThemIsNone) {
  const CsvTable read = parse_csv("\r\n0F0,0B0\n , ,\"\"\n1F0,1B0\n", "mine.csv");
  ASSERT_EQ(read.problems.size(), 2u);
  EXPECT_EQ(read.problems[0].find("mine.csv: row 1 is empty, so rank 0 would do nothing"), 0u) << read.problems[0];
  EXPECT_EQ(read.problems[1].find("mine.csv: row 3 is empty, so rank 2 would do nothing"), 0u) << read.problems[1];
  const CsvTable trailing = parse_csv("0F0,0B0\n1F0,1B0\n,,\n\n\"\",\n", "mine.csv");
  EXPECT_TRUE(trailing.problems.empty());
  EXPECT_EQ(trailing.table.size(), 2u);
}

TEST(ScheduleCsv, EmptyCellsQuotesBlanksAndOtherLineEndsAreNoObstacle) {
  const CsvTable read = parse_csv("\xEF\xBB\xBF\"0F0\",, 0B0 ,\r\n,,\"1F0\",1B0\r\n\r\n", "a.csv");
  EXPECT_TRUE(read.problems.empty());
  EXPECT_EQ(to_csv(read.table), "0F0,0B0\n1F0,1B0\n");
}

TEST(ScheduleCsv, EveryBadWordIsNamedWithItsRowAndCell) {
  const CsvTable read = parse_csv("0F0,0X0\n1F0,,1B\n", "mine.csv");
  ASSERT_EQ(read.problems.size(), 2u);
  EXPECT_EQ(read.problems[0].find("mine.csv: row 1, cell 2: \"0X0\" is not an action; write stage"), 0u)
      << read.problems[0];
  EXPECT_EQ(read.problems[1].find("mine.csv: row 2, cell 3: \"1B\" is not an action"), 0u) << read.problems[1];
}

TEST(ScheduleCsv, AFileThatIsNoTextEndsInAFewShortSentences) {
  std::string bytes;
  for (int i = 0; i < 5000; ++i) bytes += static_cast<char>(i * 37 % 256);
  const CsvTable read = parse_csv(bytes, "a.bin");
  ASSERT_FALSE(read.problems.empty());
  EXPECT_LE(read.problems.size(), 10u);
  for (const std::string& problem : read.problems) EXPECT_LT(problem.size(), 200u);
}

TEST(ScheduleCsv, AnEmptyFileIsAProblem) {
  for (const char* text : {"", "\n\n", "  \r\n"}) EXPECT_EQ(parse_csv(text, "a.csv").problems.size(), 1u);
}

}  // namespace
}  // namespace titan
