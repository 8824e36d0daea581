// Finds the rank that caused a failure, from the ranks' reports and from missing answers. Rank 0's Coordinator passes
// in each event with its time and acts on the result; nothing here communicates or reads a clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "channel.h"
#include "rank_messages.h"
#include "titan/distributed/wait_for_graph.h"

namespace titan {

/// Time limit of a health check: are the other ranks alive? The monitoring thread polls it about every second; that
/// thread also sends the question and records the answers.
class HealthDeadline {
 public:
  /// Opens the health check with half of `response_timeout` left to answer: the other half has passed before
  /// (WaitForGraph). At least kSignOfLifeLimit, since a network may pause.
  void ask(Deadline now, std::chrono::milliseconds response_timeout);
  void close() { open_ = false; }
  bool is_open() const { return open_; }
  /// While it is open: the latest time of the next poll.
  Deadline until() const { return until_; }
  /// Whether it is open for too long. Time in which this process itself was stopped does not count: answers that
  /// arrived then are not read yet.
  bool is_overdue(Deadline now);
  std::chrono::seconds open_for(Deadline now) const;

 private:
  bool open_ = false;
  Deadline since_{};
  Deadline until_{};
  Deadline looked_at_{};
};

class FailureDiagnosis {
 public:
  /// `names`: of all ranks, for messages.
  explicit FailureDiagnosis(std::vector<std::string> names);

  /// "NAME WHAT", with `rank` as the cause. `code`: its exit code; 0: it has not reported one.
  Cause cause_of(int64_t rank, int code, std::string_view what) const;

  /// A rank failed; later failures are its consequences. With code 74 (peer failure) the rank has lost another, which
  /// becomes the cause if its failure is reported within kTrueCauseLimit; if none is, the wait-for graph decides.
  /// Returns true if all ranks must be asked now which ranks they wait for.
  [[nodiscard]] bool report(Cause cause, Deadline now);
  /// The connection of a rank that has not left is closed. Returns the cause to report; nothing if an earlier failure
  /// explains it.
  std::optional<Cause> lose(int64_t rank, Deadline now);
  /// The rank has left or exited: no answer is expected from it.
  void excuse(int64_t rank);
  /// A rank is alive, and waits for these ranks.
  void answer(WaitAnswer answer);

  /// Opens a health check for rank `asker`, which waits for a rank that may be busy for long. Returns true if all ranks
  /// must be asked now; false if a check is open already, if one has just been answered by all, or if a failure is
  /// known.
  [[nodiscard]] bool ask(int64_t asker, std::chrono::milliseconds response_timeout, Deadline now);
  /// True once, when all ranks have answered the health check; `now`.
  bool take_all_alive(Deadline now);
  /// The cause to report if a rank does not answer the health check in time: the lowest such rank.
  std::optional<Cause> overdue(Deadline now);

  /// Whether `rank` reported that it lost a peer, and the cause is still open.
  bool suspects(int64_t rank) const { return suspected_ && suspected_->rank == rank; }
  /// Null until the cause is known.
  const Cause* cause() const { return cause_ ? &*cause_ : nullptr; }
  /// The cause, once the other ranks may be informed: a failed rank exits first.
  const Cause* announced(Deadline now);
  /// When to call announced() or overdue() next, at the latest.
  Deadline next(Deadline latest) const;

 private:
  Cause found_from_waits() const;

  const std::vector<std::string> names_;
  std::set<int64_t> present_;        // ranks that can answer, except rank 0
  std::set<int64_t> unanswered_;     // those that have not answered the health check
  std::optional<Cause> suspected_;   // the first rank that lost a peer, until the cause is known
  std::vector<WaitAnswer> answers_;  // wait-for edges received since then
  Deadline suspect_until_{};
  std::optional<Cause> cause_;
  Deadline announce_at_{};
  HealthDeadline health_;
  int64_t asker_ = 0;                     // of the open health check
  std::optional<Deadline> all_alive_at_;  // when all had last answered a health check
};

}  // namespace titan
