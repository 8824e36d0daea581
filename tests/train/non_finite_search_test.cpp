#include "src/train/non_finite_search.h"

#include <gtest/gtest.h>

namespace titan {
namespace {

NonFinitePlace forward_at(int64_t microbatch, int64_t unit) { return {microbatch, false, unit, "unit"}; }
NonFinitePlace backward_at(int64_t microbatch, int64_t unit) { return {microbatch, true, unit, "unit"}; }

TEST(NonFiniteSearch, UnitsComeInTheOrderOfAStep) {
  const NonFinitePlace ordered[] = {forward_at(0, 0),  forward_at(0, 3), backward_at(0, 3),
                                    backward_at(0, 1), forward_at(1, 2), backward_at(1, 2)};
  for (size_t a = 0; a < std::size(ordered); ++a) {
    for (size_t b = 0; b < std::size(ordered); ++b)
      EXPECT_EQ(is_earlier(ordered[a], ordered[b]), a < b) << a << " " << b;
  }
}

struct FirstCase {
  std::vector<std::optional<NonFinitePlace>> found;  // by rank
  std::optional<NonFinitePlace> first;
  std::vector<int64_t> ranks;
};

TEST(NonFiniteSearch, TheFirstPlaceOfAllRanksIsNamed) {
  const FirstCase cases[] = {
      {{std::nullopt, std::nullopt}, std::nullopt, {}},
      {{std::nullopt, forward_at(0, 2)}, forward_at(0, 2), {1}},
      {{forward_at(0, 3), forward_at(0, 2), forward_at(0, 3)}, forward_at(0, 2), {1}},
      {{forward_at(0, 2), std::nullopt, forward_at(0, 2)}, forward_at(0, 2), {0, 2}},
      {{backward_at(0, 1), backward_at(0, 2)}, backward_at(0, 2), {1}},
      {{backward_at(0, 0), forward_at(1, 0)}, backward_at(0, 0), {0}},
  };
  for (const FirstCase& expected : cases) {
    const std::optional<FirstNonFinite> first = first_of(expected.found);
    ASSERT_EQ(first.has_value(), expected.first.has_value());
    if (!first) continue;
    EXPECT_EQ(first->place, *expected.first);
    EXPECT_EQ(first->ranks, expected.ranks);
  }
}

}  // namespace
}  // namespace titan
