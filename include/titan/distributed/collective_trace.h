// What the groups of a rank did last. When a run hangs, the ranks' traces side by side show who is behind: the same
// group, and one rank's last call has a lower number than the others'.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "titan/distributed/communicator.h"

namespace titan {

/// A ring of the latest collectives of all groups of this rank. May be used from any thread.
class CollectiveTrace {
 public:
  /// Remembers the last `capacity` of them, at least 1.
  explicit CollectiveTrace(int64_t capacity);

  /// A call of `group` is about to be issued that moves `bytes`. Returns its number among all calls, from 0 on.
  int64_t issued(const Communicator& group, Collective kind, int64_t bytes);
  /// Call `number` has been waited for. On a CPU its result is there; on a GPU the stream waits for it.
  void waited(int64_t number);

  bool is_empty() const;
  /// The calls that are remembered, oldest first, as a JSON object: "time" (of this text, seconds since 1970) and
  /// "calls", each with its "group", the "rank" and "ranks" in that group, its number among that group's ("call"), the
  /// "collective", "bytes", "issued" and, once it was, "waited": seconds before "time".
  std::string json() const;

 private:
  using Clock = std::chrono::steady_clock;

  struct Call {
    int64_t number = -1;
    std::string group;
    int64_t rank = 0, ranks = 0;
    int64_t number_in_group = 0;
    Collective kind{};
    int64_t bytes = 0;
    Clock::time_point issued;
    Clock::time_point waited{};  // the clock's zero: not yet
  };

  mutable std::mutex mutex_;
  std::vector<Call> ring_;
  int64_t count_ = 0;
  std::map<std::string, int64_t> count_of_group_;
};

// Looks after collectives that no host thread waits for. On a GPU the host runs ahead and would wait for a lost rank in
// some later synchronisation, for ever and without a name; a thread of its own sees which collective does not end.

class OverdueWatch {
 public:
  /// Hears, on the watch's thread and once, what was not complete in time, or failed.
  using Overdue = std::function<void(const std::string& text)>;

  /// `interval`: between two looks.
  explicit OverdueWatch(Overdue overdue, std::chrono::milliseconds interval = std::chrono::milliseconds(200));
  /// Waits for a call of `overdue` under way, and for no work.
  ~OverdueWatch();
  OverdueWatch(const OverdueWatch&) = delete;
  OverdueWatch& operator=(const OverdueWatch&) = delete;

  /// `is_complete`, called on the watch's thread, must become true within `limit`. `what`: the subject of the sentence
  /// "… did not end within 100 s". What `is_complete` throws is told as its end.
  void add(std::function<bool()> is_complete, std::string what, std::chrono::milliseconds limit);

 private:
  using Clock = std::chrono::steady_clock;
  struct Work {
    std::function<bool()> is_complete;
    std::string what;
    std::chrono::milliseconds limit;
    Clock::time_point since;
  };

  void watch();
  /// Empty while the work may go on.
  static std::string problem_of(const Work& work);

  Overdue overdue_;
  std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::list<Work> added_;  // since the last look
  std::thread thread_;
};

}  // namespace titan
