#include "titan/schedule/families.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "shapes.h"
#include "titan/schedule/table.h"

namespace titan {
namespace {

TEST(ScheduleFamilies, AreFoundByNameInUpperAndLowerCase) {
  for (const ScheduleFamily& family : schedule_families()) {
    EXPECT_EQ(find_schedule(family.name), &family);
    EXPECT_EQ(find_schedule(to_lower(family.name)), &family);
  }
  EXPECT_EQ(find_schedule("2F2B"), nullptr);
}

TEST(Placement, ALoopDealsStagesOutInTurnAndAVGoesThereAndBack) {
  auto ranks = [](Placement placement) {
    std::vector<int> all;
    for (int stage = 0; stage < 8; ++stage) all.push_back(rank_of_stage(placement, 4, stage));
    return all;
  };
  EXPECT_EQ(ranks(Placement::loop), (std::vector<int>{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_EQ(ranks(Placement::v), (std::vector<int>{0, 1, 2, 3, 3, 2, 1, 0}));
  EXPECT_EQ(stages_of_rank(Placement::v, {4, 2, 1}, 1), (std::vector<int>{1, 6}));
  EXPECT_EQ(stages_of_rank(Placement::loop, {4, 3, 1}, 1), (std::vector<int>{1, 5, 9}));
}

TEST(ScheduleOrders, OfSmallPipelinesAreTheOnesOfTheLiterature) {
  EXPECT_EQ(to_csv(generated("GPipe", 2, 1, 3)), "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n");
  EXPECT_EQ(to_csv(generated("1F1B", 3, 1, 4)),
            "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3\n2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
  EXPECT_EQ(to_csv(generated("LoopedBFS", 2, 2, 2)),
            "0F0,0F1,2F0,2F1,2B1,2B0,0B1,0B0\n1F0,1F1,3F0,3F1,3B1,3B0,1B1,1B0\n");
  EXPECT_EQ(to_csv(generated("Interleaved1F1B", 2, 2, 2)),
            "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1\n");
  EXPECT_EQ(to_csv(generated("InterleavedZeroBubble", 2, 2, 2)),
            "0F0,0F1,2F0,2F1,2I0,2W0,2I1,2W1,0I0,0W0,0I1,0W1\n1F0,1F1,3F0,3I0,3F1,3I1,3W0,1I0,3W1,1I1,1W0,1W1\n");
  EXPECT_EQ(to_csv(generated("ZBVZeroBubble", 2, 2, 3)),
            "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,3F2,3I2,3W2,0I1,0W1,0I2,0W2\n"
            "1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1I1,2I2,1I2,1W1,2W2,1W2\n");
  EXPECT_EQ(
      to_csv(generated("DualPipeV", 2, 2, 4)),
      "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,(3F3;0B1)OVERLAP_F_B,3B3,0I2,0W2,"
      "0I3,0W3\n"
      "1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,(2F3;1B1)OVERLAP_F_B,2B2,1B2,2I3,1I3,2W3,"
      "1W3\n");
}

TEST(ScheduleOrders, EveryLegalShapeGivesAValidTableOfExactlyThatShapeOnItsPlacement) {
  const std::vector<NamedShape> legal = shapes(true);
  ASSERT_GT(legal.size(), 2500u);
  for (const NamedShape& one : legal) {
    const ScheduleTable table = generate(*one.family, one.shape);
    const std::vector<std::string> problems =
        table_problems(table, {one.shape.ranks, one.shape.stages(), one.shape.microbatches});
    ASSERT_TRUE(problems.empty()) << one.text() << "\n" << listed(problems);
    for (int stage = 0; stage < one.shape.stages(); ++stage) {
      ASSERT_EQ(facts_of(table).rank_of_stage[static_cast<size_t>(stage)],
                rank_of_stage(one.family->placement, one.shape.ranks, stage))
          << one.text();
    }
  }
}

/// The numbers that the final message of a sentence list: "… numbers are 8 and 12" → {8, 12}.
std::set<int> numbers_at_the_end(const std::string& problem) {
  std::set<int> numbers;
  const std::vector<std::string> words = split(problem.substr(problem.find(';') + 1), ' ');
  for (const std::string& word : words) {
    if (!word.empty() && word.find_first_not_of("0123456789") == std::string::npos) numbers.insert(std::stoi(word));
  }
  return numbers;
}

TEST(ScheduleOrders, EveryIllegalShapeIsRefusedWithTheNearestLegalNumbers) {
  const std::vector<NamedShape> illegal = shapes(false);
  ASSERT_GT(illegal.size(), 2000u);
  for (const NamedShape& one : illegal) {
    const auto legal = [&](int stages, int microbatches) {
      return shape_problems(*one.family, {one.shape.ranks, stages, microbatches}).empty();
    };
    // Brute force: the nearest number of stages with which any number of microbatches is legal, then with that the
    // nearest numbers of microbatches on both sides.
    int stages = one.shape.stages_per_rank;
    for (int distance = 0; distance < 5; ++distance) {
      const auto works = [&](int number) {
        for (int m = 1; m <= 64; ++m) {
          if (legal(number, m)) return true;
        }
        return false;
      };
      if (works(one.shape.stages_per_rank - distance)) stages = one.shape.stages_per_rank - distance;
      if (works(one.shape.stages_per_rank + distance)) stages = one.shape.stages_per_rank + distance;
      if (works(stages)) break;
    }
    std::vector<std::string> problems = shape_problems(*one.family, one.shape);
    if (stages != one.shape.stages_per_rank) {
      ASSERT_FALSE(problems.empty());
      ASSERT_TRUE(numbers_at_the_end(problems.front()).count(stages)) << one.text() << "\n" << problems.front();
      problems.erase(problems.begin());
    }
    if (legal(stages, one.shape.microbatches)) {
      ASSERT_TRUE(problems.empty()) << one.text() << "\n" << listed(problems);
      continue;
    }
    std::set<int> nearest;
    for (int m = one.shape.microbatches; m >= 1 && nearest.empty(); --m) {
      if (legal(stages, m)) nearest.insert(m);
    }
    int above = one.shape.microbatches;
    while (!legal(stages, above)) ++above;
    nearest.insert(above);
    ASSERT_EQ(problems.size(), 1u) << one.text() << "\n" << listed(problems);
    ASSERT_EQ(numbers_at_the_end(problems[0]), nearest) << one.text() << "\n" << problems[0];
  }
}

TEST(ScheduleOrders, NumbersBelowOneAreRefusedAllAtOnce) {
  const std::vector<std::string> problems = shape_problems(*find_schedule("1F1B"), {0, -1, 0});
  EXPECT_EQ(problems.size(), 3u) << listed(problems);
}

}  // namespace
}  // namespace titan
