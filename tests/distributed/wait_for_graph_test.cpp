#include "titan/distributed/wait_for_graph.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "titan/base/error.h"
#include "titan/distributed/communicator_members.h"

namespace titan {
namespace {

using Ranks = std::vector<int64_t>;
constexpr std::chrono::milliseconds kLimit{3000};

CommunicatorMembers members_of(Ranks ranks) { return {"tp", std::move(ranks), std::make_shared<WaitForGraph>()}; }

TEST(WaitForGraph, AreThoseOfThisMomentAsRanksOfTheRun) {
  const CommunicatorMembers members = members_of({4, 6, 9});
  const Ranks both{1, 2};
  EXPECT_TRUE(members.wait_for(both, [&] {
    EXPECT_EQ(members.waits->now(), (Ranks{6, 9}));
    return members.wait_for(2, [&] {
      EXPECT_EQ(members.waits->now(), (Ranks{6, 9}));
      return true;
    });
  }));
  EXPECT_EQ(members.waits->now(), Ranks{});
}

TEST(WaitForGraph, OfWorkThatNoHostThreadWaitsForAreThoseOfItsGroupUntilItIsComplete) {
  const CommunicatorMembers members = members_of({4, 6, 9});
  bool first_done = false, second_done = false;
  const WaitForGraph::Ranks others = members.others(/*own=*/1);
  const auto first = members.noted(others, [&] { return first_done; });
  const auto second = members.noted(others, [&] { return second_done; });
  EXPECT_FALSE(first());
  EXPECT_EQ(members.waits->now(), (Ranks{4, 9}));
  first_done = true;
  EXPECT_TRUE(first());
  EXPECT_EQ(members.waits->now(), (Ranks{4, 9})) << "the second is under way";
  second_done = true;
  EXPECT_TRUE(second());
  EXPECT_EQ(members.waits->now(), Ranks{});
  const auto failing = members.noted(others, []() -> bool { throw std::runtime_error("the card is lost"); });
  EXPECT_THROW(failing(), std::runtime_error);
  EXPECT_EQ(members.waits->now(), (Ranks{4, 9})) << "it says whom it waited for on its way out";
  EXPECT_EQ((CommunicatorMembers{"tp", {}, members.waits}.others(0)), nullptr)
      << "nothing to note: which ranks is not known";
}

TEST(WaitForGraph, OfARankThatHasGivenUpStayWhateverItWaitsForOnItsWayOut) {
  for (const bool throws : {false, true}) {
    const CommunicatorMembers members = members_of({4, 6, 9});
    const auto give_up = [&] {
      return members.wait_for(1, [&]() -> bool {
        if (throws) throw std::runtime_error("closed");
        return false;
      });
    };
    if (throws) {
      EXPECT_THROW(give_up(), std::runtime_error);
    } else {
      EXPECT_FALSE(give_up());
    }
    EXPECT_TRUE(members.wait_for(2, [] { return true; }));
    EXPECT_EQ(members.waits->now(), Ranks{6});
  }
}

TEST(WaitForGraph, WhereNobodyAsksTheWaitIsAllThereIs) {
  const CommunicatorMembers members{"tp", {}, nullptr};
  EXPECT_TRUE(members.wait_for(1, [] { return true; }));
  EXPECT_FALSE(members.wait_for(1, [] { return false; }));
}

TEST(WaitForGraph, AWaitInVainNamesTheRankOfTheRunWhereItIsKnown) {
  const auto text = [](const CommunicatorMembers& members) -> std::string {
    try {
      members.fail_silent(1, kLimit);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::peer_failure);
      return error.what();
    }
  };
  EXPECT_NE(text(members_of({4, 6})).find("communicator tp failed (rank 6 sent nothing for 3 s)"), std::string::npos);
  EXPECT_NE(text({"tp", {}, nullptr}).find("communicator tp failed (its rank 1 sent nothing for 3 s)"),
            std::string::npos);
}

TEST(BarrierWait, IsRecordedLikeAnyOtherAndAHealthCheckIsDueEveryHalfOfItsTimeout) {
  constexpr std::chrono::seconds kTimeout{100};
  const auto waits = std::make_shared<WaitForGraph>();
  const WaitForGraph::Clock::time_point begin = WaitForGraph::Clock::now();
  {
    const BarrierWait wait(waits, 3, kTimeout);
    const WaitForGraph::Clock::time_point noted = WaitForGraph::Clock::now();
    const BarrierWait beside(waits, 3, kTimeout * 10);
    EXPECT_EQ(waits->now(), Ranks{3});
    EXPECT_FALSE(waits->health_check_due(begin + kTimeout / 2 - kLimit));
    EXPECT_EQ(waits->health_check_due(noted + kTimeout / 2), kTimeout);
    EXPECT_FALSE(waits->health_check_due(noted + kTimeout - kLimit)) << "each check is due once";
    EXPECT_EQ(waits->health_check_due(noted + kTimeout), kTimeout);
  }
  EXPECT_EQ(waits->now(), Ranks{});
  EXPECT_FALSE(waits->health_check_due(begin + kTimeout * 100)) << "nobody is waited for any more";
}

TEST(BarrierWait, OfARankThatHasGivenUpStaysAndNoMoreChecksAreDue) {
  const auto waits = std::make_shared<WaitForGraph>();
  {
    const BarrierWait wait(waits, 3, kLimit);
    waits->keep();
  }
  EXPECT_EQ(waits->now(), Ranks{3});
  EXPECT_FALSE(waits->health_check_due(WaitForGraph::Clock::now() + kLimit));
}

TEST(BarrierWait, KnowsSinceWhenTheOthersAreKnownToLive) {
  WaitForGraph waits;
  const WaitForGraph::Clock::time_point now = WaitForGraph::Clock::now();
  EXPECT_FALSE(waits.were_alive_since(now));
  waits.note_alive(now);
  EXPECT_TRUE(waits.were_alive_since(now));
  EXPECT_FALSE(waits.were_alive_since(now + kLimit));
}

TEST(RankRuns, OfACommunicatorAreFewAndItsMembersAnswerTheSame) {
  using Run = RankRuns::Run;
  EXPECT_TRUE(RankRuns(Ranks{}).empty());
  EXPECT_EQ(RankRuns({7}).runs(), (std::vector<Run>{{7, 7, 1}}));
  EXPECT_EQ(RankRuns({0, 1, 2, 3, 8, 9, 10, 11}).runs(), (std::vector<Run>{{0, 3, 1}, {8, 11, 1}}));
  EXPECT_EQ(RankRuns({3, 11, 19}).runs(), (std::vector<Run>{{3, 19, 8}}));
  const RankRuns all({0, 4, 8, 12});
  for (const int64_t rank : {0, 4, 8, 12}) {
    Ranks others{0, 4, 8, 12};
    std::erase(others, rank);
    EXPECT_EQ(answer_of(rank, others).waits_for, all) << rank;
  }
  EXPECT_TRUE(answer_of(3, {}).waits_for.empty());
}

void expect_end(const std::vector<WaitAnswer>& answers, int64_t reporter, int64_t rank, bool answers_itself) {
  const WaitEnd end = end_of_waits(answers, reporter);
  EXPECT_EQ(end.rank, rank);
  if (rank >= 0) {
    EXPECT_EQ(end.answers, answers_itself);
  }
}

TEST(EndOfWaits, IsTheRankThatWaitsForNobodyHoweverLongTheChain) {
  // A pipeline: each waits for the next, and rank 3 computes.
  expect_end({{0, {1}}, {1, {2}}, {2, {3}}, {3, {}}}, 0, 3, true);
  expect_end({{0, {1}}, {1, {2}}, {2, {3}}, {3, {}}}, 2, 3, true);
}

TEST(EndOfWaits, IsTheRankThatGivesNoAnswerBeforeOneThatComputes) {
  // fsdp 2 x tp 2 with rank 3 stopped; rank 0 is not yet in a collective.
  expect_end({{0, {}}, {1, {0, 3}}, {2, {3}}}, 1, 3, false);
  expect_end({{0, {2}}, {1, {0}}, {2, {3}}}, 1, 3, false);
}

TEST(EndOfWaits, IsFoundAmongRanksThatWaitForWholeGroups) {
  expect_end({{0, {1, 2, 3}}, {1, {0, 2, 3}}, {2, {0, 1, 3}}, {3, {}}}, 2, 3, true);
}

TEST(EndOfWaits, IsFoundAmongThousandsThatAllWaitForAll) {
  constexpr int64_t kRanks = 4096;
  const RankRuns all(std::vector<RankRuns::Run>{{0, kRanks - 1, 1}});
  std::vector<WaitAnswer> answers;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    if (rank != 77) answers.push_back({rank, rank == 99 ? RankRuns() : all});
  }
  expect_end(answers, 5, 77, false);
  answers.push_back({77, all});
  expect_end(answers, 5, 99, true);
}

TEST(EndOfWaits, IsNobodyWhenRanksWaitInACircleOrTheReporterDoesNotKnow) {
  expect_end({{0, {1}}, {1, {2}}, {2, {0}}}, 0, -1, false);
  expect_end({{0, {}}, {1, {}}}, 0, -1, false);
  expect_end({{0, {1}}}, 1, -1, false);  // not even the reporter has answered
}

TEST(EndOfWaits, DoesNotLookAtRanksThatNobodyOnTheChainWaitsFor) {
  expect_end({{0, {1}}, {1, {0}}, {2, {}}}, 0, -1, false);
  expect_end({{0, {1}}, {1, {}}, {3, {2}}}, 0, 1, true);
}

}  // namespace
}  // namespace titan
