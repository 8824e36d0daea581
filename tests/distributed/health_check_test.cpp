#include "src/distributed/coordinator_client.h"

#include <gtest/gtest.h>

#include "src/distributed/ending.h"

namespace titan {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
constexpr Deadline kBegin{std::chrono::hours(1)};

/// Looks every second from `from` on: after how many seconds since kBegin the question is overdue; -1: not by `last`.
int64_t overdue_at(HealthCheck& question, int64_t from, int64_t last) {
  for (int64_t second = from; second <= last; ++second) {
    if (question.is_overdue(kBegin + seconds(second))) return second;
  }
  return -1;
}

TEST(HealthCheck, IsOverdueAfterHalfOfThePatience) {
  HealthCheck question;
  EXPECT_FALSE(question.is_overdue(kBegin));
  question.ask(kBegin, seconds(100));
  EXPECT_EQ(question.until(), kBegin + seconds(50));
  EXPECT_EQ(overdue_at(question, 1, 100), 50);
  EXPECT_EQ(question.open_for(kBegin + seconds(50)), seconds(50));
}

TEST(HealthCheck, LeavesTimeForAHiccupOfTheNetworkHoweverShortThePatience) {
  HealthCheck question;
  question.ask(kBegin, milliseconds(20));
  EXPECT_EQ(overdue_at(question, 1, 100), kSignOfLifeLimit.count());
}

TEST(HealthCheck, ThatIsAnsweredIsNeverOverdueAndTheNextOneHasAllItsTime) {
  HealthCheck question;
  question.ask(kBegin, seconds(20));
  question.close();
  EXPECT_EQ(overdue_at(question, 1, 100), -1);
  question.ask(kBegin + seconds(100), seconds(20));
  EXPECT_EQ(overdue_at(question, 101, 200), 110);
}

TEST(HealthCheck, BlamesNobodyForTheTimeInWhichThisProcessWasStoppedItself) {
  HealthCheck question;
  question.ask(kBegin, seconds(20));
  EXPECT_EQ(overdue_at(question, 1, 4), -1);
  EXPECT_EQ(overdue_at(question, 600, 700), 606) << "six of ten seconds were left";
}

}  // namespace
}  // namespace titan
