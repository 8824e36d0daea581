// Looks after collectives that no host thread waits for. On a GPU the host runs ahead and would wait for a lost rank in
// some later synchronisation, for ever and without a name; a thread of its own sees which collective does not end.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <thread>

namespace titan {

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
