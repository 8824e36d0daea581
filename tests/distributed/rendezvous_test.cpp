// Ranks as threads of one process; what ends processes is tested from outside (tests/behaviour).
#include "titan/distributed/rendezvous.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "meeting.h"
#include "titan/distributed/wait_for_graph.h"

namespace titan {
namespace {

using test::facts_of_a, test::facts_of_rank, test::kRendezvousPatience, test::kShort, test::kStoreKey, test::launch_of,
    test::meet, test::Met, test::part, test::ports, test::proven;

TEST(Rendezvous, ASingleProcessMeetsNobodyAndHasNoStore) {
  const Rendezvous alone = join_ranks({}, facts_of_a(), kShort, {});
  EXPECT_EQ(alone.world.size, 1);
  EXPECT_FALSE(alone.world.store);
  EXPECT_EQ(alone.watcher, nullptr);
}

/// 192.0.2.0/24 belongs to nobody (RFC 5737).
constexpr const char* kNobodysHost = "192.0.2.1";

TEST(Rendezvous, ARankZeroThatIsToldAnotherHostsAddressForItsOwnIsFoundByThoseThatKnowBetter) {
  const std::vector<uint16_t> at = ports();
  Launch mistaken = launch_of(0, 2, at);
  mistaken.rendezvous.host = kNobodysHost;
  auto other = meet(launch_of(1, 2, at), kRendezvousPatience);
  Met zero = meet(mistaken, kRendezvousPatience).get();
  Met one = other.get();
  ASSERT_EQ(zero.error + one.error, "");
  part(zero, one);
}

TEST(Rendezvous, RanksThatDoNotComeWhereRankZeroWasToldAnAddressThatIsNotItsOwnAreNotBlamed) {
  Launch mistaken = launch_of(0, 2, ports());
  mistaken.rendezvous.host = kNobodysHost;
  const Met zero = meet(mistaken, kShort).get();
  EXPECT_EQ(zero.code, static_cast<int>(ExitCode::launcher));
  const std::string says =
      "check MASTER_ADDR or comm.master: 192.0.2.1 is not an address of this host, where rank 0 is";
  EXPECT_NE(zero.error.find(says), std::string::npos) << zero.error;
  const Met right = meet(launch_of(0, 2, ports()), kShort).get();
  EXPECT_EQ(right.error.find("no address of this host"), std::string::npos) << right.error;
}

TEST(Rendezvous, RanksThatMeetShareAStoreAndTheirCores) {
  const std::vector<uint16_t> at = ports();
  auto other = meet(launch_of(1, 2, at), kRendezvousPatience);
  Met zero = meet(launch_of(0, 2, at), kRendezvousPatience).get();
  Met one = other.get();
  ASSERT_EQ(zero.error + one.error, "");
  EXPECT_EQ(one.rendezvous.world.rank, 1);
  EXPECT_EQ(one.rendezvous.world.cores, 1);
  EXPECT_TRUE(zero.rendezvous.world.is_on_one_host());
  EXPECT_EQ(one.rendezvous.world.host_ranks, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(zero.rendezvous.table.size(), 3u);
  EXPECT_TRUE(one.rendezvous.table.empty());
  zero.rendezvous.world.store->set("key", "value");
  EXPECT_EQ(one.rendezvous.world.store->get_to_str("key"), "value");
  part(zero, one);
}

TEST(Rendezvous, RanksLearnTheirPlaceOnTheirHostWhenNoLauncherSaysIt) {
  const std::vector<uint16_t> at = ports();
  std::vector<std::future<Met>> ranks;
  for (const int64_t rank : {0, 1, 2}) {
    Launch launch = launch_of(rank, 3, at);
    launch.local_rank.reset();
    launch.local_size.reset();
    RankFacts own = facts_of_a();
    own.host = rank == 1 ? "b" : "a";
    ranks.push_back(meet(launch, kRendezvousPatience, own));
  }
  std::vector<Met> met;
  for (std::future<Met>& rank : ranks) met.push_back(rank.get());
  for (const Met& one : met) ASSERT_EQ(one.error, "");
  EXPECT_EQ(met[0].rendezvous.world.host_ranks, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(met[1].rendezvous.world.local_rank, 0);
  EXPECT_EQ(met[2].rendezvous.world.local_rank, 1);
  EXPECT_FALSE(met[2].rendezvous.world.is_on_one_host());
  std::vector<std::future<std::vector<int64_t>>> left;
  for (Met& one : met) {
    left.push_back(
        std::async(std::launch::async, [&one] { return one.rendezvous.watcher->leave(kRendezvousPatience); }));
  }
  for (auto& unfinished : left) EXPECT_TRUE(unfinished.get().empty());
}

TEST(Rendezvous, APortThatAnotherProgramHasIsPassedOverByAllRanks) {
  const std::vector<uint16_t> at = ports();
  c10d::TCPStoreOptions options;
  options.port = at[0];
  options.isServer = true;
  options.waitWorkers = false;
  const c10d::TCPStore foreign("127.0.0.1", options);
  auto other = meet(launch_of(1, 2, at), kRendezvousPatience);
  Met zero = meet(launch_of(0, 2, at), kRendezvousPatience).get();
  Met one = other.get();
  ASSERT_EQ(zero.error + one.error, "");
  part(zero, one);
}

TEST(Rendezvous, TwoRunsOnTheSamePortsDoNotMeetEachOther) {
  const std::vector<uint16_t> at = ports();
  std::vector<std::future<Met>> ranks;
  for (const char* run : {"first", "second"}) {
    for (const int64_t rank : {0, 1}) ranks.push_back(meet(launch_of(rank, 2, at, run), kRendezvousPatience));
  }
  std::vector<Met> met;
  for (std::future<Met>& rank : ranks) met.push_back(rank.get());
  for (const Met& one : met) ASSERT_EQ(one.error, "");
  met[0].rendezvous.world.store->set("run", "first");
  met[2].rendezvous.world.store->set("run", "second");
  EXPECT_EQ(met[1].rendezvous.world.store->get_to_str("run"), "first");
  EXPECT_EQ(met[3].rendezvous.world.store->get_to_str("run"), "second");
  part(met[0], met[1]);
  part(met[2], met[3]);
}

TEST(Rendezvous, ATakenPortThatMustBeUsedIsRefusedByItsNumber) {
  const std::vector<uint16_t> at{ports()[0]};
  c10d::TCPStoreOptions options;
  options.port = at[0];
  options.isServer = true;
  options.waitWorkers = false;
  const c10d::TCPStore foreign("127.0.0.1", options);
  const Met zero = meet(launch_of(0, 2, at), kShort).get();
  EXPECT_EQ(zero.code, 69);
  EXPECT_NE(zero.error.find("port " + std::to_string(at[0]) + ": Address already in use"), std::string::npos)
      << zero.error;
}

TEST(Rendezvous, ARankThatDoesNotComeIsNamedToAllWhoDid) {
  const std::vector<uint16_t> at = ports();
  auto other = meet(launch_of(2, 3, at), kRendezvousPatience);
  const Met zero = meet(launch_of(0, 3, at), kShort).get();
  EXPECT_EQ(zero.code, 69);
  EXPECT_NE(zero.error.find("rank 1 of 3 did not connect within 1 s"), std::string::npos) << zero.error;
  const Met two = other.get();
  EXPECT_EQ(two.code, 69);
  EXPECT_EQ(two.error, zero.error);
}

TEST(Rendezvous, ARankZeroThatDoesNotComeIsNamedWithWhereItWasLookedFor) {
  const std::vector<uint16_t> at = ports();
  const Met one = meet(launch_of(1, 2, {at[0]}), kShort).get();
  EXPECT_EQ(one.code, 69);
  EXPECT_NE(one.error.find("rank 0 was not found on 127.0.0.1, port " + std::to_string(at[0])), std::string::npos)
      << one.error;
  EXPECT_NE(one.error.find("Connection refused"), std::string::npos) << one.error;
}

TEST(Rendezvous, AnotherConfigEndsAllRanksWithOneText) {
  const std::vector<uint16_t> at = ports();
  RankFacts different = facts_of_a();
  different.config = "{\"a\":1}";
  RankFacts usual = facts_of_a();
  usual.config = "{\"a\":2}";
  auto other = meet(launch_of(1, 2, at), kRendezvousPatience, different);
  const Met zero = meet(launch_of(0, 2, at), kRendezvousPatience, usual).get();
  EXPECT_EQ(zero.code, 69);
  EXPECT_NE(zero.error.find("a is 1 there and 2 on rank 0"), std::string::npos) << zero.error;
  EXPECT_EQ(other.get().error, zero.error);
}

TEST(Rendezvous, AProblemOfOneRankEndsAllWithItsExitCode) {
  const std::vector<uint16_t> at = ports();
  RankFacts troubled = facts_of_a();
  troubled.problem = "no GPU";
  troubled.problem_code = 64;
  auto other = meet(launch_of(1, 2, at), kRendezvousPatience, troubled);
  const Met zero = meet(launch_of(0, 2, at), kRendezvousPatience).get();
  EXPECT_EQ(zero.code, 64);
  EXPECT_EQ(other.get().code, 64);
}

TEST(Rendezvous, AProblemOfRankZeroEndsTheOthersWithIt) {
  const std::vector<uint16_t> at = ports();
  RankFacts troubled = facts_of_a();
  troubled.problem = "no GPU";
  troubled.problem_code = 64;
  auto other = meet(launch_of(1, 2, at), kRendezvousPatience);
  const Met zero = meet(launch_of(0, 2, at), kRendezvousPatience, troubled).get();
  EXPECT_EQ(zero.error, "no GPU");
  EXPECT_EQ(other.get().code, 64);
}

TEST(Rendezvous, ARankOnItsWayWhenTheRunIsRefusedIsToldWhy) {
  const std::vector<uint16_t> at = ports();
  auto zero = meet(launch_of(0, 3, at), kRendezvousPatience);
  Channel one = proven(at[0]);
  RankFacts troubled = facts_of_rank(1, 3);
  troubled.problem = "no GPU";
  troubled.problem_code = 64;
  ASSERT_TRUE(one.send_line(troubled.to_json()));
  const Met late = meet(launch_of(2, 3, at), kShort).get();
  EXPECT_EQ(late.code, 64);
  EXPECT_EQ(late.error, zero.get().error);
}

TEST(Rendezvous, ARankWithAProblemThatFindsNobodyKeepsItsOwnWords) {
  RankFacts troubled = facts_of_a();
  troubled.problem = "no GPU";
  troubled.problem_code = 64;
  const Met one = meet(launch_of(1, 2, {ports()[0]}), kShort, troubled).get();
  EXPECT_EQ(one.code, 64);
  EXPECT_EQ(one.error, "no GPU");
}

TEST(Rendezvous, ARankThatEndsWhileTheOthersGatherEndsThem) {
  const std::vector<uint16_t> at = ports();
  auto zero = meet(launch_of(0, 3, at), kRendezvousPatience);
  Channel one = proven(at[0]);
  RankFacts own = facts_of_rank(1, 3);
  own.process = 7;
  ASSERT_TRUE(one.send_line(own.to_json()));
  one.close();
  const Met met = zero.get();
  EXPECT_EQ(met.code, 74);
  EXPECT_NE(met.error.find("rank 1 (a, process 7) ended while the ranks were gathering"), std::string::npos)
      << met.error;
}

/// As torchrun starts them: again, after a failure, while some of the attempt before may still be there.
Launch restarted(int64_t rank, int64_t size, const std::vector<uint16_t>& at) {
  Launch launch = launch_of(rank, size, at);
  launch.rendezvous.restarts = true;
  return launch;
}

/// The former rank 0 still gathers, and holds the only port; it ends before its missing rank comes.
TEST(Rendezvous, ARankThatMetTheRankZeroOfAnEndingAttemptMeetsTheNextOneOnTheSamePort) {
  const std::vector<uint16_t> at{ports()[0]};
  auto former = meet(restarted(0, 3, at), 2 * kShort);
  proven(at[0]).close();  // it listens
  auto one = meet(restarted(1, 3, at), kRendezvousPatience);
  auto zero = meet(restarted(0, 3, at), kRendezvousPatience);
  EXPECT_EQ(former.get().code, 69) << "rank 2 did not come";
  auto two = meet(restarted(2, 3, at), kRendezvousPatience);
  Met met = zero.get(), first = one.get(), second = two.get();
  ASSERT_EQ(met.error + first.error + second.error, "");
  auto left = std::async(std::launch::async, [&] { return second.rendezvous.watcher->leave(kRendezvousPatience); });
  part(met, first);
  EXPECT_TRUE(left.get().empty());
}

TEST(Rendezvous, ARankZeroThatDiesWhileItGathersIsFollowedByAnother) {
  const std::vector<uint16_t> at{ports()[0]};
  Descriptor listener = listen_on("127.0.0.1", at[0]);
  ASSERT_TRUE(listener);
  auto one = meet(restarted(1, 2, at), kRendezvousPatience);
  std::optional<Channel> caller;
  while (!(caller = Channel::accept(listener))) std::this_thread::yield();
  const Deadline limit = std::chrono::steady_clock::now() + kRendezvousPatience;
  caller->send_line(greeting_line("0"));
  const Hello hello = parse_message(caller->wait_line(limit).value()).hello.value();
  caller->send_line(proof_line(Handshake{kStoreKey, at[0], "0", hello.nonce, 1}.zero_proof()));
  EXPECT_TRUE(caller->wait_line(limit)) << "the rank's report";
  caller->close();
  listener = {};
  Met zero = meet(restarted(0, 2, at), kRendezvousPatience).get();
  Met met = one.get();
  ASSERT_EQ(zero.error + met.error, "");
  part(zero, met);
}

TEST(Rendezvous, ARankThatLeavesOrComesAgainIsReplacedWhereRanksAreStartedAgain) {
  for (const bool leaves : {true, false}) {
    const std::vector<uint16_t> at{ports()[0]};
    auto zero = meet(restarted(0, 3, at), kRendezvousPatience);
    Channel former = proven(at[0]);
    ASSERT_TRUE(former.send_line(facts_of_rank(1, 3).to_json()));
    if (leaves) former.close();
    auto one = meet(restarted(1, 3, at), kRendezvousPatience);
    if (!leaves) {
      const auto line = former.wait_line(std::chrono::steady_clock::now() + kRendezvousPatience);
      EXPECT_TRUE(line && parse_message(*line).refused) << "another has taken its place";
    }
    auto two = meet(restarted(2, 3, at), kRendezvousPatience);
    Met met = zero.get(), first = one.get(), second = two.get();
    ASSERT_EQ(met.error + first.error + second.error, "") << leaves;
    auto left = std::async(std::launch::async, [&] { return second.rendezvous.watcher->leave(kRendezvousPatience); });
    part(met, first);
    EXPECT_TRUE(left.get().empty());
  }
}

/// Waits until `waits` has heard since `then` that the others live.
bool hears_of_life(const WaitForGraph& waits, WaitForGraph::Clock::time_point then) {
  const Deadline limit = std::chrono::steady_clock::now() + kRendezvousPatience;
  while (!waits.were_alive_since(then)) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::yield();
  }
  return true;
}

// A rank that does not respond ends processes: tests/behaviour/long_save_test.py.
TEST(Rendezvous, WhoeverWaitsPatientlyHearsAgainAndAgainThatTheOthersLiveAndTheRunGoesOn) {
  const std::vector<uint16_t> at = ports();
  auto second = meet(launch_of(1, 3, at), kRendezvousPatience);
  auto third = meet(launch_of(2, 3, at), kRendezvousPatience);
  std::vector<Met> met;
  met.push_back(meet(launch_of(0, 3, at), kRendezvousPatience).get());
  met.push_back(second.get());
  met.push_back(third.get());
  for (const Met& one : met) ASSERT_EQ(one.error, "");
  const auto waits_of = [&](size_t rank) { return met[rank].rendezvous.world.waits; };
  {
    const BarrierWait zero(waits_of(0), 2, std::chrono::milliseconds(20));
    const BarrierWait one(waits_of(1), 0, std::chrono::milliseconds(20));
    for (int question = 0; question < 3; ++question) {
      const auto now = std::chrono::steady_clock::now();
      EXPECT_TRUE(hears_of_life(*waits_of(0), now));
      EXPECT_TRUE(hears_of_life(*waits_of(1), now));
    }
    EXPECT_FALSE(waits_of(2)->were_alive_since(Deadline() + std::chrono::nanoseconds(1))) << "it waits for nobody";
  }
  std::vector<std::future<std::vector<int64_t>>> left;
  for (Met& one : met) {
    left.push_back(
        std::async(std::launch::async, [&one] { return one.rendezvous.watcher->leave(kRendezvousPatience); }));
  }
  for (auto& unfinished : left) EXPECT_TRUE(unfinished.get().empty());
}

TEST(Rendezvous, RankZeroLeavesAtItsLimitAndNamesWhoHasNot) {
  const std::vector<uint16_t> at = ports();
  auto other = meet(launch_of(1, 2, at), kRendezvousPatience);
  Met zero = meet(launch_of(0, 2, at), kRendezvousPatience).get();
  Met one = other.get();
  ASSERT_EQ(zero.error + one.error, "");
  EXPECT_EQ(zero.rendezvous.watcher->leave(kShort), std::vector<int64_t>{1});
  one.rendezvous.watcher->leave(kShort);  // whether it still hears rank 0 depends on who is quicker
}

}  // namespace
}  // namespace titan
