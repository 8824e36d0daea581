// Ranks as threads that meet: for the tests of what all ranks do together.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "titan/checkpoint/save.h"

namespace titan {

/// Runs `act(meeting)` once for each of `ranks` ranks, side by side, and waits for all of them. `act` must not throw.
inline void run_ranks(int64_t ranks, const std::function<void(RankBarrier&)>& act) {
  struct Room {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::string> messages, told;
    size_t arrived = 0, round = 0;
  };
  class Seat : public RankBarrier {
   public:
    Seat(Room& room, int64_t rank, int64_t size) : room_(room), rank_(rank), size_(size) {}
    int64_t rank() const override { return rank_; }
    int64_t size() const override { return size_; }
    std::vector<std::string> exchange(std::string message) override {
      std::unique_lock lock(room_.mutex);
      room_.messages[static_cast<size_t>(rank_)] = std::move(message);
      const size_t round = room_.round;
      if (++room_.arrived == room_.messages.size()) {
        room_.told = room_.messages;
        room_.arrived = 0;
        ++room_.round;
        room_.changed.notify_all();
      }
      room_.changed.wait(lock, [&] { return room_.round != round; });
      return room_.told;  // nobody overwrites it before all have left: the next round needs everyone
    }

   private:
    Room& room_;
    int64_t rank_, size_;
  };
  Room room;
  room.messages.resize(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Seat seat(room, rank, ranks);
      act(seat);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace titan
