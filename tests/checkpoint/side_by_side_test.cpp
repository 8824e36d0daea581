#include "titan/checkpoint/save.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>

namespace titan {
namespace {

TEST(SideBySide, EachPieceIsDoneOnceAndAllHaveEndedWhenItReturns) {
  for (const size_t count : {0, 1, 2, 7}) {
    std::vector<std::atomic<int>> done(count);
    side_by_side(count, [&](size_t i) { ++done[i]; });
    for (const std::atomic<int>& times : done) EXPECT_EQ(times, 1) << count;
  }
}

TEST(SideBySide, TheFirstFailureByNumberIsThrownAndTheOthersEndFirst) {
  std::atomic<int> ended = 0;
  try {
    side_by_side(5, [&](size_t i) {
      ++ended;
      if (i % 2 == 1) throw std::runtime_error(std::to_string(i));
    });
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "1");
  }
  EXPECT_EQ(ended, 5);
}

}  // namespace
}  // namespace titan
