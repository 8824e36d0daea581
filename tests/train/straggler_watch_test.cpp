#include "src/train/straggler_watch.h"

#include <gtest/gtest.h>

namespace titan {
namespace {

struct ScoreCase {
  const char* name;
  std::vector<double> seconds;
  std::vector<int64_t> work;
  std::vector<double> scores;
};

TEST(Stragglers, ScoresAreRelativeToTheLowerMedianOfTheSameWork) {
  const ScoreCase cases[] = {
      {"an odd number", {1, 2, 4}, {0, 0, 0}, {0.5, 1, 2}},
      {"an even number: the lower one", {2, 2.5, 4, 1}, {0, 0, 0, 0}, {1, 1.25, 2, 0.5}},
      {"two have no median", {1, 2}, {0, 0}, {0, 0}},
      {"one alone", {1}, {0}, {0}},
      {"stages apart", {1, 1, 2, 10, 10, 10}, {0, 0, 0, 1, 1, 1}, {1, 1, 2, 1, 1, 1}},
      {"a stage of two has no verdict", {1, 1, 2, 10, 20}, {0, 0, 0, 1, 1}, {1, 1, 2, 0, 0}},
      {"interleaved stages", {1, 9, 1, 9, 3, 9}, {0, 1, 0, 1, 0, 1}, {1, 1, 1, 1, 3, 1}},
      {"nothing computed", {0, 0, 0}, {0, 0, 0}, {0, 0, 0}},
      {"no ranks", {}, {}, {}},
  };
  for (const ScoreCase& expected : cases) {
    EXPECT_EQ(straggler_scores(expected.seconds, expected.work), expected.scores) << expected.name;
  }
}

TEST(Stragglers, ARankIsNamedOnceItWasSlowInEveryWindow) {
  StragglerCount count(3, 1.15, 3);
  const std::vector<double> slow{1, 1.2, 1}, border{1, 1.15, 1};
  EXPECT_TRUE(count.add(slow).empty());
  EXPECT_TRUE(count.add(slow).empty());
  EXPECT_TRUE(count.add(border).empty()) << "not above the ratio: the count begins again";
  EXPECT_TRUE(count.add(slow).empty());
  EXPECT_TRUE(count.add(slow).empty());
  EXPECT_EQ(count.add(slow), (std::vector<int64_t>{1}));
  EXPECT_TRUE(count.add(slow).empty()) << "it was named";
  count.add(border);
  count.add(slow), count.add(slow);
  EXPECT_EQ(count.add(slow), (std::vector<int64_t>{1})) << "it was fast in between";
}

TEST(Stragglers, SeveralRanksAreNamedTogether) {
  StragglerCount count(4, 1.15, 2);
  const std::vector<double> scores{2, 1, 1, 3};
  count.add(scores);
  EXPECT_EQ(count.add(scores), (std::vector<int64_t>{0, 3}));
}

}  // namespace
}  // namespace titan
