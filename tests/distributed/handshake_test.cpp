// Who is taken for a rank: strangers, other secrets, forged reports and proofs.
#include <gtest/gtest.h>
#include <poll.h>

#include <future>
#include <set>
#include <thread>

#include "meeting.h"

namespace titan {
namespace {

using test::facts_of_a, test::facts_of_rank, test::kRendezvousPatience, test::kShort, test::launch_of, test::meet,
    test::Met, test::part, test::ports, test::proven;

TEST(Rendezvous, StrangersAreDroppedAndDoNotHinderTheRanks) {
  const std::vector<uint16_t> at = ports();
  auto zero = meet(launch_of(0, 2, at), kRendezvousPatience);
  Channel greeted = proven(at[0]);  // rank 0 listens
  greeted.close();
  std::string reason;
  RankFacts forged = facts_of_rank(1, 2);
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
    RankFacts own = facts_of_rank(rank, 3);
    own.process = rank;
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
    RankFacts forged = facts_of_rank(1, 2);
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

}  // namespace
}  // namespace titan
