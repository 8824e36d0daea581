// Ranks as threads of one process; what ends processes is tested from outside (tests/behaviour).
#include "titan/distributed/rendezvous.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <future>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "src/distributed/channel.h"
#include "src/distributed/rank_messages.h"
#include "titan/base/philox.h"
#include "titan/distributed/wait_for_graph.h"

namespace titan {
namespace {

RankFacts facts_of_a() {
  RankFacts facts;
  facts.host = "a";
  facts.device = "cpu";
  facts.cores = {0, 1};
  return facts;
}

/// Nine ports of this test's own.
std::vector<uint16_t> ports() {
  const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
  return derived_ports(name_key(test + std::to_string(::getpid())));
}

Launch launch_of(int64_t rank, int64_t size, const std::vector<uint16_t>& ports, const std::string& run = "test") {
  Launch launch{.launcher = "test", .rank = rank, .size = size, .local_rank = rank, .local_size = size};
  launch.rendezvous = {RendezvousEndpoint::Kind::rank_zero, "127.0.0.1", ports, run};
  return launch;
}

struct Met {
  Rendezvous rendezvous;
  std::string error;
  int code = 0;
};

/// One rank on a thread of its own.
std::future<Met> meet(const Launch& launch, std::chrono::seconds timeout, RankFacts own = facts_of_a()) {
  return std::async(std::launch::async, [=] {
    Met met;
    try {
      met.rendezvous = join_ranks(launch, own, timeout, [](const std::string&, bool) {});
    } catch (const Error& error) {
      met.error = error.what();
      met.code = static_cast<int>(error.code());
    }
    return met;
  });
}

constexpr std::chrono::seconds kRendezvousPatience{60};
constexpr std::chrono::seconds kShort{1};

/// Both leave, as they must before either's process could end.
void part(Met& zero, Met& one) {
  auto left = std::async(std::launch::async, [&] { return one.rendezvous.watcher->leave(kRendezvousPatience); });
  EXPECT_TRUE(zero.rendezvous.watcher->leave(kRendezvousPatience).empty());
  EXPECT_TRUE(left.get().empty());
}

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

const std::string kStoreKey = "\ntest";  // of a run named "test" without a secret

/// A channel to a rank 0 that believes it to be rank `rank`.
Channel proven(uint16_t port, int64_t rank = 1) {
  const Deadline limit = std::chrono::steady_clock::now() + kRendezvousPatience;
  std::optional<Channel> channel;
  for (std::string reason; !channel && std::chrono::steady_clock::now() < limit;) {
    channel = Channel::connect("127.0.0.1", port, kShort, reason);
  }
  const std::optional<std::string> greeting = channel ? channel->wait_line(limit) : std::nullopt;
  EXPECT_TRUE(greeting) << "rank 0 did not greet";
  if (!greeting) return {};
  const Handshake handshake{kStoreKey, port, parse_message(*greeting).greeting.value_or(""), "nonce", rank};
  EXPECT_TRUE(channel->send_line(hello_line({rank, handshake.caller_nonce, handshake.caller_proof()})));
  const std::optional<std::string> proof = channel->wait_line(limit);
  EXPECT_TRUE(proof && parse_message(*proof).proof == handshake.zero_proof()) << "rank 0 proves nothing";
  return std::move(*channel);
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
  RankFacts troubled = facts_of_a();
  troubled.rank = 1;
  troubled.size = 3;
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
  RankFacts own = facts_of_a();
  own.rank = 1;
  own.size = 3;
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
    RankFacts own = facts_of_a();
    own.rank = 1;
    own.size = 3;
    ASSERT_TRUE(former.send_line(own.to_json()));
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

TEST(Rendezvous, StrangersAreDroppedAndDoNotHinderTheRanks) {
  const std::vector<uint16_t> at = ports();
  auto zero = meet(launch_of(0, 2, at), kRendezvousPatience);
  Channel greeted = proven(at[0]);  // rank 0 listens
  greeted.close();
  std::string reason;
  RankFacts forged = facts_of_a();
  forged.rank = 1;
  forged.size = 2;
  forged.problem = "forged";
  const std::string nested = std::string(200000, '[');
  std::vector<Channel> strangers;
  for (const std::string& words : {std::string("GET / HTTP/1.1"), forged.to_json(), nested, refused_line({0, "forged"}),
                                   std::string(), hello_line({1, "nonce", std::string(40, '0')})}) {
    strangers.push_back(*Channel::connect("127.0.0.1", at[0], kRendezvousPatience, reason));
    if (!words.empty()) strangers.back().send_line(words);
  }
  for (Channel& stranger : strangers) {
    const Deadline limit = std::chrono::steady_clock::now() + kRendezvousPatience;
    const std::optional<std::string> greeting = stranger.wait_line(limit);
    EXPECT_TRUE(!greeting || parse_message(*greeting).greeting);
    EXPECT_FALSE(stranger.wait_line(limit)) << "rank 0 said more than its greeting";
    EXPECT_FALSE(stranger.is_open()) << "the silent one, too, within about a second";
  }
  Met one = meet(launch_of(1, 2, at), kRendezvousPatience).get();
  Met met = zero.get();
  ASSERT_EQ(met.error + one.error, "");
  part(met, one);
}

TEST(Rendezvous, RanksWithAnotherSecretDoNotMeetAndAreToldOfIt) {
  const std::vector<uint16_t> at{ports()[0]};
  Launch other = launch_of(1, 2, at);
  other.rendezvous.secret = "another";
  auto one = meet(other, kShort);
  const Met zero = meet(launch_of(0, 2, at), 2 * kShort).get();
  EXPECT_EQ(zero.code, 69);
  EXPECT_NE(zero.error.find("callers did not know this run's secret"), std::string::npos) << zero.error;
  const Met missed = one.get();
  EXPECT_EQ(missed.code, 69);
  EXPECT_NE(missed.error.find("a run with another secret"), std::string::npos) << missed.error;
}

TEST(Rendezvous, ARankThatWasNotGreetedSaysSoEvenIfTheListenerHasGoneSince) {
  const std::vector<uint16_t> at{ports()[0]};
  Descriptor listener = listen_on("127.0.0.1", at[0]);
  ASSERT_TRUE(listener);
  auto one = meet(launch_of(1, 2, at), kShort);
  std::optional<Channel> caller;
  while (!caller) caller = Channel::accept(listener);
  listener.close();
  caller->close();
  const Met missed = one.get();
  EXPECT_EQ(missed.code, 69);
  EXPECT_NE(missed.error.find("belongs to something else"), std::string::npos) << missed.error;
}

TEST(Rendezvous, AMemberThatDoesNotReadKeepsNoOtherWaiting) {
  const std::vector<uint16_t> at = ports();
  auto joins = meet(launch_of(0, 3, at), kRendezvousPatience);
  const Deadline limit = std::chrono::steady_clock::now() + kRendezvousPatience;
  std::vector<Channel> others;
  for (const int64_t rank : {1, 2}) {
    RankFacts own = facts_of_a();
    own.rank = own.process = rank;
    own.size = 3;
    others.push_back(proven(at[0], rank));
    ASSERT_TRUE(others.back().send_line(own.to_json()));
  }
  Met zero = joins.get();
  ASSERT_EQ(zero.error, "");
  Channel &reads_nothing = others[0], &reads = others[1];
  zero.rendezvous.world.store->set("big", std::vector<uint8_t>(30 << 20));
  const auto got = [](int64_t id) {
    return store_line({.kind = StoreCall::Kind::get, .keys = {"big"}, .within = kRendezvousPatience, .id = id});
  };
  EXPECT_TRUE(reads.wait_line(limit)) << "its welcome";
  EXPECT_TRUE(reads_nothing.wait_line(limit));
  reads_nothing.send_line(got(1));
  pollfd begins{reads_nothing.descriptor(), POLLIN, 0};
  ASSERT_EQ(::poll(&begins, 1, 60000), 1) << "the answer, of which most finds no room";
  reads.send_line(asks_line(2 * kRendezvousPatience));  // has rank 0 ask them all
  reads.send_line(store_line({.kind = StoreCall::Kind::count, .within = kRendezvousPatience, .id = 2}));
  bool is_answered = false;
  const Deadline soon = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  while (const std::optional<std::string> line = reads.wait_line(soon)) {
    if ((is_answered = parse_message(*line).stored.has_value())) break;
  }
  EXPECT_TRUE(is_answered);
  reads_nothing.set_longest_line(kMembersLine);
  EXPECT_TRUE(reads_nothing.wait_line(limit)) << "what found no room is sent as soon as it does";
  for (Channel& other : others) other.send_line(leaving_line());
  EXPECT_TRUE(zero.rendezvous.watcher->leave(kRendezvousPatience).empty());
}

TEST(Rendezvous, AReportWithoutAnExitCodeOfTheTableIsNoReport) {
  for (const int code : {0, 1, 63, 78, 128, 255, -1}) {
    const std::vector<uint16_t> at = ports();
    auto zero = meet(launch_of(0, 2, at), kRendezvousPatience);
    Channel one = proven(at[0]);
    RankFacts forged = facts_of_a();
    forged.rank = 1;
    forged.size = 2;
    forged.problem = "forged";
    forged.problem_code = code;
    one.send_line(forged.to_json());
    const Met met = zero.get();
    EXPECT_EQ(met.code, 69) << code;
    EXPECT_NE(met.error.find("rank 1 sent a report that cannot be read"), std::string::npos) << met.error;
  }
}

TEST(Rendezvous, AListenerThatAnswersFirstIsPassedOverAndIsToldNothingOfTheConfig) {
  const std::vector<uint16_t> at = ports();
  const Descriptor listener = listen_on("127.0.0.1", at[0]);
  ASSERT_TRUE(listener);
  RankFacts own = facts_of_a();
  own.config = "{\"secret\":1}";
  auto one = meet(launch_of(1, 2, at), kRendezvousPatience, own);
  std::optional<Channel> caller;
  while (!caller) caller = Channel::accept(listener);
  const Deadline limit = std::chrono::steady_clock::now() + kRendezvousPatience;
  caller->send_line(greeting_line("nonce"));
  const std::optional<std::string> hello = caller->wait_line(limit);
  ASSERT_TRUE(hello && parse_message(*hello).hello) << hello.value_or("nothing");
  caller->send_line(refused_line({64, "forged"}));
  EXPECT_FALSE(caller->wait_line(limit)) << "it went on with a stranger";
  Met zero = meet(launch_of(0, 2, at), kRendezvousPatience, own).get();  // on the next port
  Met met = one.get();
  ASSERT_EQ(zero.error + met.error, "");
  part(zero, met);
}

/// Two ranks that have met.
class RankStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::vector<uint16_t> at = ports();
    auto other = meet(launch_of(1, 2, at), kRendezvousPatience);
    zero_ = meet(launch_of(0, 2, at), kRendezvousPatience).get();
    one_ = other.get();
    ASSERT_EQ(zero_.error + one_.error, "");
  }
  void TearDown() override { part(zero_, one_); }
  c10d::Store& zero() const { return *zero_.rendezvous.world.store; }
  c10d::Store& one() const { return *one_.rendezvous.world.store; }

 private:
  Met zero_, one_;
};

TEST_F(RankStoreTest, AKeyIsWaitedForOnEitherSideUntilTheOtherSetsIt) {
  for (const auto& [waits, sets] : {std::pair{&one(), &zero()}, {&zero(), &one()}}) {
    const std::string key = waits == &zero() ? "a" : "b";
    auto got = std::async(std::launch::async, [&, waits = waits] { return waits->get_to_str(key); });
    EXPECT_EQ(got.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
    sets->set(key, "value");
    EXPECT_EQ(got.get(), "value");
    EXPECT_TRUE(waits->check({key}));
    EXPECT_TRUE(waits->deleteKey(key));
    EXPECT_FALSE(sets->check({key}));
  }
}

TEST_F(RankStoreTest, EveryWaitEndsAtItsLimitAndTheStoreGoesOn) {
  for (c10d::Store* store : {&zero(), &one()}) {
    EXPECT_THROW(store->wait({"never"}, std::chrono::milliseconds(10)), c10::DistStoreError);
    const c10::intrusive_ptr<c10d::Store> copy = store->clone();
    copy->setTimeout(std::chrono::milliseconds(10));
    EXPECT_THROW(copy->get("never"), c10::DistStoreError);
    EXPECT_GT(store->getTimeout(), std::chrono::seconds(1)) << "the copy's limit is its own";
    EXPECT_EQ(store->add("count", 2), store == &zero() ? 2 : 4);
  }
  EXPECT_EQ(zero().get_to_str("count"), "4");
}

TEST_F(RankStoreTest, BytesOfAnyKindAndNumberArriveAsTheyAre) {
  std::vector<uint8_t> bytes(3000000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7);
  one().set("from one", bytes);
  zero().set("from zero", bytes);
  EXPECT_EQ(zero().get("from one"), bytes);
  EXPECT_EQ(one().get("from zero"), bytes);
  one().set("empty", std::vector<uint8_t>());
  EXPECT_EQ(zero().get("empty"), std::vector<uint8_t>());
}

TEST_F(RankStoreTest, WhatIsLongerThanALineIsRefusedInItsOwnWordsAndTheStoreGoesOn) {
  const std::vector<uint8_t> longest(31 << 20), longer(33 << 20);
  for (c10d::Store* store : {&zero(), &one()}) {
    try {
      store->set("long", longer);
      ADD_FAILURE() << "taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::launcher);
      EXPECT_TRUE(std::string(error.what()).starts_with("34603012 bytes for long are more than")) << error.what();
    }
    store->set("", longest);
    EXPECT_EQ((store == &zero() ? one() : zero()).get("").size(), longest.size());
  }
}

TEST_F(RankStoreTest, CompareSetAndAppendWorkAsInTheLibrarysStores) {
  EXPECT_EQ(one().compareSet("key", "other", "new"), "other") << "missing, and something was expected";
  EXPECT_FALSE(zero().check({"key"}));
  EXPECT_EQ(one().compareSet("key", "", "first"), "first");
  EXPECT_EQ(zero().compareSet("key", "other", "second"), "first");
  EXPECT_EQ(one().compareSet("key", "first", "second"), "second");
  EXPECT_EQ(zero().getNumKeys(), 1);
  EXPECT_EQ(one().getNumKeys(), 1);
}

TEST(KeyedHash, IsHmacSha1AsRfc2202HasIt) {
  EXPECT_EQ(keyed_hash(std::string(20, '\x0b'), "Hi There"), "b617318655057264e28bc0b6fb378c8ef146be00");
  EXPECT_EQ(keyed_hash("Jefe", "what do ya want for nothing?"), "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79");
  EXPECT_EQ(keyed_hash(std::string(80, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "aa4ae5e15272d00e95705637ce8a3b55ed402112");
}

TEST(KeyedHash, AProofIsOfOneSideOnePortAndOneRank) {
  const Handshake handshake{"secret", 4000, "a", "b", 1};
  std::set<std::string> proofs{handshake.zero_proof(), handshake.caller_proof()};
  for (const Handshake& other : {Handshake{"secret", 4001, "a", "b", 1}, Handshake{"secret", 4000, "a", "b", 2},
                                 Handshake{"Secret", 4000, "a", "b", 1}, Handshake{"secret", 4000, "c", "b", 1}}) {
    proofs.insert(other.zero_proof());
    proofs.insert(other.caller_proof());
  }
  EXPECT_EQ(proofs.size(), 10u);
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
