// Ranks that meet, as threads of one process.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "src/distributed/channel.h"
#include "src/distributed/rank_messages.h"
#include "titan/base/philox.h"
#include "titan/distributed/rendezvous.h"

namespace titan::test {

inline RankFacts facts_of_a() {
  RankFacts facts;
  facts.host = "a";
  facts.device = "cpu";
  facts.cores = {0, 1};
  return facts;
}

/// The same as rank `rank` of `size` reports them: for what a test sends itself as if it were this rank.
inline RankFacts facts_of_rank(int64_t rank, int64_t size) {
  RankFacts facts = facts_of_a();
  facts.rank = rank;
  facts.size = size;
  return facts;
}

/// Nine ports of this test's own.
inline std::vector<uint16_t> ports() {
  const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
  return derived_ports(name_key(test + std::to_string(::getpid())));
}

inline Launch launch_of(int64_t rank, int64_t size, const std::vector<uint16_t>& ports,
                        const std::string& run = "test") {
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
inline std::future<Met> meet(const Launch& launch, std::chrono::seconds timeout, RankFacts own = facts_of_a()) {
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

inline constexpr std::chrono::seconds kRendezvousPatience{60};
inline constexpr std::chrono::seconds kShort{1};

/// Both leave, as they must before either's process could end.
inline void part(Met& zero, Met& one) {
  auto left = std::async(std::launch::async, [&] { return one.rendezvous.watcher->leave(kRendezvousPatience); });
  EXPECT_TRUE(zero.rendezvous.watcher->leave(kRendezvousPatience).empty());
  EXPECT_TRUE(left.get().empty());
}

inline const std::string kStoreKey = "\ntest";  // of a run named "test" without a secret

/// A channel to a rank 0 that believes it to be rank `rank`.
inline Channel proven(uint16_t port, int64_t rank = 1) {
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

}  // namespace titan::test
