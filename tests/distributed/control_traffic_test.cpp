// What the control plane sends for each rank, counted with ranks as threads. It must not depend on how many ranks there
// are: rank 0 sends and receives all of it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "support/control_plane.h"
#include "titan/base/philox.h"

namespace titan {
namespace {

constexpr std::chrono::seconds kControlPatience{120};

/// Rank 0's traffic in each phase.
struct Phases {
  ControlTraffic rendezvous, decide, tell, gather;
  int64_t keys = 0;
};

Phases phases_of(int64_t ranks) {
  const std::vector<uint16_t> ports = derived_ports(name_key("control traffic" + std::to_string(::getpid() + ranks)));
  const std::string message(100, 'x'), config(2000, 'c');
  Phases phases;
  const auto be_rank = [&](int64_t rank) {
    ControlRank self = join_control_plane(rank, ranks, ports, config, kControlPatience);
    AbortWatcher& watcher = *self.joined.watcher;
    ControlTraffic before{};
    // Ranks that are late count towards the phase that they are late for: each phase begins and ends at a barrier,
    // where rank 0 has got everything, and the messages of all barriers are the same.
    const auto count = [&](ControlTraffic& phase) {
      if (rank == 0) phase = watcher.traffic() - before;
      before = watcher.traffic();
    };
    count(phases.rendezvous);
    const std::string answer = self.barrier->decide(
        message, [](const std::vector<std::string>& messages) { return std::to_string(messages.size()); });
    EXPECT_EQ(answer, std::to_string(ranks));
    self.barrier->wait_for_all();
    count(phases.decide);
    EXPECT_EQ(self.barrier->tell(rank == 0 ? message : std::string()), message);
    self.barrier->wait_for_all();
    count(phases.tell);
    EXPECT_EQ(std::ssize(self.barrier->gather(message)), rank == 0 ? ranks : 0);
    self.barrier->wait_for_all();
    count(phases.gather);
    if (rank == 0) phases.keys = self.joined.world.store->getNumKeys();
    EXPECT_TRUE(watcher.leave(kControlPatience).empty());
  };
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) threads.emplace_back(be_rank, rank);
  for (std::thread& thread : threads) thread.join();
  return phases;
}

struct PerRank {
  double messages, bytes;
};

PerRank per_rank(const ControlTraffic& phase, int64_t ranks) {
  const auto others = static_cast<double>(ranks - 1);
  return {static_cast<double>(phase.messages_sent + phase.messages_received) / others,
          static_cast<double>(phase.bytes_sent + phase.bytes_received) / others};
}

TEST(ControlTraffic, OfEachRankIsTheSameWhetherThereAreEightRanksOrSixtyFour) {
  const Phases few = phases_of(8), many = phases_of(64);
  const auto expect_the_same = [](const ControlTraffic& with_few, const ControlTraffic& with_many, const char* what) {
    const PerRank a = per_rank(with_few, 8), b = per_rank(with_many, 64);
    // A rank asks for an answer that is not there yet once more: at most one question and one answer are late or early.
    EXPECT_NEAR(a.messages, b.messages, 4) << what;
    EXPECT_LE(b.bytes, a.bytes * 1.1 + 100) << what;  // numbers of ranks have another digit
  };
  expect_the_same(few.rendezvous, many.rendezvous, "rendezvous");
  expect_the_same(few.decide, many.decide, "decide");
  expect_the_same(few.tell, many.tell, "tell");
  expect_the_same(few.gather, many.gather, "gather");
  EXPECT_EQ(few.rendezvous.messages_sent, 7 * 3) << "a greeting, a proof and a welcome for each";
  EXPECT_EQ(many.rendezvous.messages_sent, 63 * 3);
  EXPECT_GE(many.rendezvous.bytes_received, 63 * 2000) << "each sends its config";
  EXPECT_LE(many.keys, 1 + 63) << "keys of earlier rounds are deleted";
}

}  // namespace
}  // namespace titan
