#include "titan/base/process.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace titan {
namespace {

TEST(Cores, AreListedAsRanges) {
  EXPECT_EQ(core_list({}), "");
  EXPECT_EQ(core_list({3}), "3");
  EXPECT_EQ(core_list({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
}

TEST(Cores, OfAThreadThatIsBoundAreThoseItIsBoundTo) {
  const std::vector<int> all = allowed_cores();
  ASSERT_FALSE(all.empty());
  std::vector<int> bound;
  std::thread([&] {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CPU_SET(all.back(), &mask);
    ASSERT_EQ(::sched_setaffinity(0, sizeof mask, &mask), 0);
    bound = allowed_cores();
  }).join();
  EXPECT_EQ(bound, std::vector<int>{all.back()});
}

}  // namespace
}  // namespace titan
