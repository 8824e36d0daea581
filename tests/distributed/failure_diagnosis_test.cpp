#include "src/distributed/failure_diagnosis.h"

#include <gtest/gtest.h>

#include "src/distributed/ending.h"

namespace titan {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
constexpr Deadline kBegin{std::chrono::hours(1)};

/// Looks every second from `from` on: after how many seconds since kBegin the question is overdue; -1: not by `last`.
int64_t overdue_at(HealthDeadline& question, int64_t from, int64_t last) {
  for (int64_t second = from; second <= last; ++second) {
    if (question.is_overdue(kBegin + seconds(second))) return second;
  }
  return -1;
}

TEST(HealthDeadline, IsOverdueAfterHalfOfTheTimeout) {
  HealthDeadline question;
  EXPECT_FALSE(question.is_overdue(kBegin));
  question.ask(kBegin, seconds(100));
  EXPECT_EQ(question.until(), kBegin + seconds(50));
  EXPECT_EQ(overdue_at(question, 1, 100), 50);
  EXPECT_EQ(question.open_for(kBegin + seconds(50)), seconds(50));
}

TEST(HealthDeadline, LeavesTimeForAHiccupOfTheNetworkHoweverShortTheTimeout) {
  HealthDeadline question;
  question.ask(kBegin, milliseconds(20));
  EXPECT_EQ(overdue_at(question, 1, 100), kSignOfLifeLimit.count());
}

TEST(HealthDeadline, ThatIsAnsweredIsNeverOverdueAndTheNextOneHasAllItsTime) {
  HealthDeadline question;
  question.ask(kBegin, seconds(20));
  question.close();
  EXPECT_EQ(overdue_at(question, 1, 100), -1);
  question.ask(kBegin + seconds(100), seconds(20));
  EXPECT_EQ(overdue_at(question, 101, 200), 110);
}

TEST(HealthDeadline, BlamesNobodyForTheTimeInWhichThisProcessWasStoppedItself) {
  HealthDeadline question;
  question.ask(kBegin, seconds(20));
  EXPECT_EQ(overdue_at(question, 1, 4), -1);
  EXPECT_EQ(overdue_at(question, 600, 700), 606) << "six of ten seconds were left";
}

Cause failure_of(int64_t rank, int code) { return {rank, code, "broken"}; }

FailureDiagnosis four_ranks() { return FailureDiagnosis({"rank 0 (a)", "rank 1 (a)", "rank 2 (b)", "rank 3 (b)"}); }

TEST(FailureDiagnosis, ARankThatFailedIsAnnouncedOnceItHadTimeToEndOrIsGone) {
  for (const bool is_gone : {false, true}) {
    FailureDiagnosis diagnosis = four_ranks();
    EXPECT_FALSE(diagnosis.report(failure_of(2, 65), kBegin)) << "nothing is to be asked";
    EXPECT_EQ(diagnosis.announced(kBegin + seconds(1)), nullptr);
    if (is_gone) {
      EXPECT_FALSE(diagnosis.lose(2, kBegin + seconds(1))) << "that is known";
    }
    const Deadline due = kBegin + (is_gone ? seconds(1) : kFirstToEndLimit);
    EXPECT_EQ(diagnosis.next(kBegin + seconds(10)), due);
    ASSERT_NE(diagnosis.announced(due), nullptr);
    EXPECT_EQ(diagnosis.announced(due)->rank, 2);
    EXPECT_EQ(diagnosis.announced(due)->text, "broken");
  }
}

TEST(FailureDiagnosis, TheFirstFailureIsTheCause) {
  FailureDiagnosis diagnosis = four_ranks();
  EXPECT_FALSE(diagnosis.report(failure_of(0, 70), kBegin));
  EXPECT_FALSE(diagnosis.report(failure_of(1, 74), kBegin));
  EXPECT_FALSE(diagnosis.report(failure_of(2, 70), kBegin));
  EXPECT_FALSE(diagnosis.lose(3, kBegin));
  ASSERT_NE(diagnosis.announced(kBegin), nullptr) << "rank 0 announces its own failure itself, and at once";
  EXPECT_EQ(diagnosis.announced(kBegin)->rank, 0);
}

TEST(FailureDiagnosis, ARankThatIsGoneWithoutAReportIsTheCauseAtOnce) {
  FailureDiagnosis diagnosis = four_ranks();
  const std::optional<Cause> cause = diagnosis.lose(3, kBegin);
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->text, "rank 3 (b) ended without a message: it crashed or was killed");
  EXPECT_FALSE(diagnosis.report(*cause, kBegin));
  EXPECT_NE(diagnosis.announced(kBegin), nullptr);
}

TEST(FailureDiagnosis, TheRankThatOthersLostIsTheCauseIfItsFailureComesInTime) {
  FailureDiagnosis diagnosis = four_ranks();
  EXPECT_TRUE(diagnosis.report(failure_of(1, 74), kBegin)) << "all are asked which ranks they wait for";
  EXPECT_FALSE(diagnosis.report(failure_of(2, 74), kBegin)) << "once";
  EXPECT_TRUE(diagnosis.suspects(1));
  EXPECT_FALSE(diagnosis.lose(1, kBegin)) << "it has said why it fails";
  EXPECT_EQ(diagnosis.cause(), nullptr);
  EXPECT_EQ(diagnosis.next(kBegin + seconds(10)), kBegin + kTrueCauseLimit);
  EXPECT_FALSE(diagnosis.report(failure_of(3, 71), kBegin + seconds(1)));
  ASSERT_NE(diagnosis.cause(), nullptr);
  EXPECT_EQ(diagnosis.cause()->rank, 3);
}

/// Rank 1 timed out, and no rank has failed: the cause that `answers` lead to.
Cause cause_of_a_timeout(const std::vector<WaitAnswer>& answers) {
  FailureDiagnosis diagnosis = four_ranks();
  EXPECT_TRUE(diagnosis.report(failure_of(1, 74), kBegin));
  for (const WaitAnswer& answer : answers) diagnosis.answer(answer);
  EXPECT_EQ(diagnosis.announced(kBegin + kTrueCauseLimit - milliseconds(1)), nullptr);
  const Cause* cause = diagnosis.announced(kBegin + kTrueCauseLimit);
  return cause ? *cause : Cause{-1, 0, ""};
}

TEST(FailureDiagnosis, WithoutAFailureTheRankThatTheOthersWaitForHangs) {
  const Cause busy = cause_of_a_timeout({{0, {1}}, {1, {2}}, {2, {}}, {3, {0}}});
  EXPECT_EQ(busy.rank, 2);
  EXPECT_EQ(busy.code, static_cast<int>(ExitCode::hang));
  EXPECT_FALSE(busy.is_silent) << "it ends with that code itself";
  EXPECT_EQ(busy.text, "rank 2 (b) hangs: it waits for no other rank, and the others wait for it; broken");
  const Cause stopped = cause_of_a_timeout({{0, {1}}, {1, {2}}, {2, {3}}});
  EXPECT_EQ(stopped.rank, 3);
  EXPECT_TRUE(stopped.is_silent);
  EXPECT_EQ(stopped.text, "rank 3 (b) hangs: it does not respond; its process or host is stopped; broken");
  const Cause cycle = cause_of_a_timeout({{1, {2}}, {2, {1}}});
  EXPECT_EQ(cycle.rank, 1) << "the one that timed out";
  EXPECT_EQ(cycle.code, 74);
}

TEST(FailureDiagnosis, AHealthCheckEndsWhenAllRanksHaveAnsweredThatCan) {
  FailureDiagnosis diagnosis = four_ranks();
  diagnosis.excuse(1);
  EXPECT_FALSE(diagnosis.take_all_alive(kBegin)) << "nothing was asked";
  EXPECT_TRUE(diagnosis.ask(0, seconds(20), kBegin));
  EXPECT_FALSE(diagnosis.ask(2, seconds(20), kBegin)) << "one check is open";
  diagnosis.answer({3, {}});
  EXPECT_FALSE(diagnosis.take_all_alive(kBegin));
  diagnosis.excuse(2);
  EXPECT_TRUE(diagnosis.take_all_alive(kBegin));
  EXPECT_FALSE(diagnosis.take_all_alive(kBegin)) << "it is closed";
  EXPECT_FALSE(diagnosis.overdue(kBegin + seconds(100)));
  EXPECT_TRUE(diagnosis.ask(3, seconds(20), kBegin + seconds(100)));
}

TEST(FailureDiagnosis, RanksThatAskOneAfterTheOtherShareOneHealthCheckWhileItsAnswersAreYoung) {
  FailureDiagnosis diagnosis = four_ranks();
  const auto check = [&](int64_t asker, milliseconds at) {
    const bool asks_all = diagnosis.ask(asker, seconds(80), kBegin + at);
    for (const int64_t rank : {1, 2, 3}) diagnosis.answer({rank, {0}});
    EXPECT_EQ(diagnosis.take_all_alive(kBegin + at), asks_all);
    return asks_all;
  };
  EXPECT_TRUE(check(1, seconds(0)));
  EXPECT_FALSE(check(2, seconds(1)));
  EXPECT_FALSE(check(3, milliseconds(9999)));
  EXPECT_TRUE(check(1, seconds(10))) << "an eighth of the timeout";
}

TEST(FailureDiagnosis, TheLowestRankThatLeavesAHealthCheckUnansweredIsTheCause) {
  FailureDiagnosis diagnosis = four_ranks();
  EXPECT_TRUE(diagnosis.ask(3, seconds(8), kBegin));
  diagnosis.answer({3, {1}});
  for (int64_t second = 1; second < 4; ++second) EXPECT_FALSE(diagnosis.overdue(kBegin + seconds(second)));
  const std::optional<Cause> silent = diagnosis.overdue(kBegin + seconds(4));
  ASSERT_TRUE(silent);
  EXPECT_EQ(silent->rank, 1);
  EXPECT_TRUE(silent->is_silent);
  EXPECT_EQ(silent->text,
            "rank 1 (a) hangs: it does not respond; its process or host is stopped; rank 3 waits for the others, and "
            "the health check that it requested had no answer for 4 s");
}

TEST(FailureDiagnosis, AFailureEndsTheHealthCheck) {
  FailureDiagnosis diagnosis = four_ranks();
  EXPECT_TRUE(diagnosis.ask(3, seconds(8), kBegin));
  EXPECT_FALSE(diagnosis.report(failure_of(2, 70), kBegin));
  EXPECT_FALSE(diagnosis.overdue(kBegin + seconds(4)));
  EXPECT_FALSE(diagnosis.take_all_alive(kBegin));
  EXPECT_FALSE(diagnosis.ask(3, seconds(8), kBegin + seconds(4)));
}

}  // namespace
}  // namespace titan
