// The latest collectives of a rank's communicators. When a run hangs, comparing the ranks' traces finds the rank that
// is behind: its last call on some communicator has a lower number than the other ranks' last call on it.
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

/// A ring buffer of the latest collectives of all communicators of this rank. Thread-safe.
class CollectiveTrace {
 public:
  /// `capacity`: number of calls kept, at least 1.
  explicit CollectiveTrace(int64_t capacity);

  /// Records a call of `communicator` that moves `bytes`, before it is issued. Returns its index among all calls, from
  /// 0.
  int64_t issued(const Communicator& communicator, Collective kind, int64_t bytes);
  /// Records that call `number` was waited for: on a CPU it is complete; on a GPU the stream waits for it.
  void waited(int64_t number);

  bool is_empty() const;
  /// The calls kept, oldest first, as a JSON object: "time" (when it was written, seconds since 1970) and "calls", each
  /// with its "communicator", this rank's number in it ("rank"), its size ("ranks"), the call's number on it
  /// ("call"), the "collective", "bytes", "issued" and, once waited for, "waited": seconds before "time".
  std::string json() const;

 private:
  using Clock = std::chrono::steady_clock;

  struct Call {
    int64_t number = -1;
    std::string communicator;
    int64_t rank = 0, ranks = 0;
    int64_t number_on_communicator = 0;
    Collective kind{};
    int64_t bytes = 0;
    Clock::time_point issued;
    Clock::time_point waited{};  // epoch: not waited for yet
  };

  mutable std::mutex mutex_;
  std::vector<Call> ring_;
  int64_t count_ = 0;
  std::map<std::string, int64_t> count_of_communicator_;
};

// Timeout for collectives that no host thread waits for. On a GPU the host runs ahead and would block for ever on a
// lost rank in some later synchronisation, without naming the collective; a separate thread finds the one that timed
// out.

class OverdueWatch {
 public:
  /// Called once, on the watch's thread, for a collective that failed or was not complete in time.
  using Overdue = std::function<void(const std::string& text)>;

  /// `interval`: polling interval.
  explicit OverdueWatch(Overdue overdue, std::chrono::milliseconds interval = std::chrono::milliseconds(200));
  /// Waits for a running call of `overdue`, but not for pending work.
  ~OverdueWatch();
  OverdueWatch(const OverdueWatch&) = delete;
  OverdueWatch& operator=(const OverdueWatch&) = delete;

  /// `is_complete`, called on the watch's thread, must become true within `limit`. `what`: the subject of the sentence
  /// "… did not end within 100 s". An exception from `is_complete` is reported as failure.
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
  /// Empty while the work is within its limit.
  static std::string problem_of(const Work& work);

  Overdue overdue_;
  std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false;
  std::list<Work> added_;  // since the last poll
  std::thread thread_;
};

}  // namespace titan
