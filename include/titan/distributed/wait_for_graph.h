// The wait-for graph: which ranks each rank is blocked on. When a rank hangs, the other ranks wait for each other;
// following the edges leads to the rank that holds up the run.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace titan {

/// The outgoing edges of one rank. Thread-safe.
class WaitForGraph {
 public:
  using Ranks = std::shared_ptr<const std::vector<int64_t>>;
  using Clock = std::chrono::steady_clock;

  void begin(int64_t rank);
  void end(int64_t rank);
  /// Many ranks at the cost of one; pass the same object to begin and end.
  void begin(const Ranks& ranks);
  void end(const Ranks& ranks);
  /// Freezes the current edges after a timeout, so that unwinding does not remove them.
  void keep();
  /// The ranks waited for now, ascending, without duplicates.
  std::vector<int64_t> now() const;

  /// As begin(rank), for a rank that may be busy for long (BarrierWait): a health check of the rank is due every half
  /// `response_timeout`. Returns the wait's number, for end_checked.
  int64_t begin_checked(int64_t rank, std::chrono::milliseconds response_timeout);
  void end_checked(int64_t number);
  /// For the watcher thread: the response timeout of a wait whose next health check is due at `now`; each is due once.
  std::optional<std::chrono::milliseconds> health_check_due(Clock::time_point now);
  /// For the watcher thread: the health check was answered at `now`; the ranks waited for are alive.
  void note_alive(Clock::time_point now);
  bool were_alive_since(Clock::time_point then) const;

 private:
  struct CheckedWait {
    int64_t rank;
    std::chrono::milliseconds response_timeout;
    Clock::time_point next_check;
  };

  mutable std::mutex mutex_;
  bool kept_ = false;
  std::map<int64_t, int64_t> waiting_;      // number of waits, by rank
  std::map<Ranks, int64_t> together_;       // number of waits, by set of ranks
  std::map<int64_t, CheckedWait> checked_;  // by number
  int64_t next_number_ = 0;
  Clock::time_point lived_at_{};
};

/// Scoped wait for a rank that may be busy for long, as at the barriers of a save. The wait lasts as long as the rank's
/// process answers; a rank that does not answer ends the run (AbortWatcher).
class BarrierWait {
 public:
  /// `waits` may be null: no health checks.
  BarrierWait(std::shared_ptr<WaitForGraph> waits, int64_t rank, std::chrono::milliseconds response_timeout);
  ~BarrierWait();
  BarrierWait(const BarrierWait&) = delete;
  BarrierWait& operator=(const BarrierWait&) = delete;

 private:
  std::shared_ptr<WaitForGraph> waits_;
  int64_t number_ = 0;
};

/// A set of ranks as runs of equal step. A communicator's ranks are a few runs, however many ranks it has: with lists
/// of ranks, the answers of all ranks that wait for all would have as many numbers as the square of their number.
class RankRuns {
 public:
  struct Run {
    int64_t first, last, step;
    auto operator<=>(const Run&) const = default;
  };

  RankRuns() = default;
  RankRuns(const std::vector<int64_t>& ascending);  // NOLINT(google-explicit-constructor): another form of the same
  RankRuns(std::initializer_list<int64_t> ascending) : RankRuns(std::vector<int64_t>(ascending)) {}
  explicit RankRuns(std::vector<Run> runs) : runs_(std::move(runs)) {}

  bool empty() const { return runs_.empty(); }
  const std::vector<Run>& runs() const { return runs_; }
  bool operator==(const RankRuns&) const = default;

 private:
  std::vector<Run> runs_;
};

/// A rank's answer: which ranks it waits for.
struct WaitAnswer {
  int64_t rank;
  RankRuns waits_for;  // empty: it computes, reads or writes
};
/// The answer of `rank`, which waits for `ascending`. If there are any, it adds itself: so all members of a
/// communicator that wait for each other answer the same.
WaitAnswer answer_of(int64_t rank, std::vector<int64_t> ascending);

/// The rank that holds up a run in which `reporter` timed out.
struct WaitEnd {
  int64_t rank = -1;  ///< -1: not found: the ranks wait in a cycle, or `reporter` has no known edge
  bool answers = false;
};
/// `answers`: of all ranks that answered; a rank that did not, or its host, is stopped. Among several ranks at which
/// the edges end, a rank without an answer is preferred, then the lowest.
WaitEnd end_of_waits(const std::vector<WaitAnswer>& answers, int64_t reporter);

}  // namespace titan
