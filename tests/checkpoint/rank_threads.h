// Ranks as threads with a barrier: for tests of what all ranks do together.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "titan/checkpoint/save.h"

namespace titan {

/// Runs `act(barrier)` once for each of `ranks` ranks, side by side, and waits for all of them. `act` must not throw.
inline void run_ranks(int64_t ranks, const std::function<void(RankBarrier&)>& act) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::string> messages;
    std::string answer;
    size_t arrived = 0, round = 0;
  };
  class ThreadBarrier : public RankBarrier {
   public:
    ThreadBarrier(Shared& shared, int64_t rank, int64_t size) : shared_(shared), rank_(rank), size_(size) {}
    int64_t rank() const override { return rank_; }
    int64_t size() const override { return size_; }
    std::string decide(std::string message, const Decision& decide) override {
      std::unique_lock lock(shared_.mutex);
      shared_.messages[static_cast<size_t>(rank_)] = std::move(message);
      const size_t round = shared_.round;
      ++shared_.arrived;
      shared_.changed.notify_all();
      if (rank_ == 0) {
        shared_.changed.wait(lock, [&] { return shared_.arrived == shared_.messages.size(); });
        shared_.answer = decide(shared_.messages);
        shared_.arrived = 0;
        ++shared_.round;
        shared_.changed.notify_all();
      }
      shared_.changed.wait(lock, [&] { return shared_.round != round; });
      return shared_.answer;  // nobody overwrites it before all have left: the next round needs everyone
    }

   private:
    Shared& shared_;
    int64_t rank_, size_;
  };
  Shared shared;
  shared.messages.resize(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadBarrier barrier(shared, rank, ranks);
      act(barrier);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace titan
