// Which rank caused a failure: decided from what the ranks report, and from what a rank leaves unanswered. Rank 0's
// Coordinator passes in each event with its time and acts on the result; nothing here communicates or reads a clock.
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

/// The time limit of an open question whether other ranks are alive. The thread that monitors the ranks looks at it
/// about every second; it also sends the question and keeps who has answered.
class HealthDeadline {
 public:
  /// Half of `response_timeout` is left to answer: the other half has passed before the question (WaitForGraph). Not
  /// less than kSignOfLifeLimit, since a network may pause.
  void ask(Deadline now, std::chrono::milliseconds response_timeout);
  void close() { open_ = false; }
  bool is_open() const { return open_; }
  /// While it is open: when to look next at the latest.
  Deadline until() const { return until_; }
  /// Whether it has been open for too long. Time in which this process itself was stopped does not count: answers
  /// that came then have not been read yet.
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
  /// The connection of a rank that was not done is closed. Returns the cause to report; nothing if a failure that
  /// explains it was reported before.
  std::optional<Cause> lose(int64_t rank, Deadline now);
  /// The rank is done or gone: no answer is expected from it.
  void excuse(int64_t rank);
  /// A rank is alive, and waits for these ranks.
  void answer(WaitAnswer answer);

  /// Opens a health check for rank `asker`, which waits for a rank that may be busy for long. Returns true if all ranks
  /// must be asked now; false if a check is open already, or a failure is known.
  [[nodiscard]] bool ask(int64_t asker, std::chrono::milliseconds response_timeout, Deadline now);
  /// True once, when all ranks have answered the health check.
  bool take_all_alive();
  /// The cause to report when a rank leaves the health check unanswered for too long: the lowest such rank.
  std::optional<Cause> overdue(Deadline now);

  /// Whether `rank` reported that it lost a peer, and the cause is still open.
  bool suspects(int64_t rank) const { return suspected_ && suspected_->rank == rank; }
  /// Null as long as the cause is open.
  const Cause* cause() const { return cause_ ? &*cause_ : nullptr; }
  /// The cause, once the other ranks may learn of it: a rank that failed ends first.
  const Cause* announced(Deadline now);
  /// When to call announced() or overdue() next, at the latest.
  Deadline next(Deadline latest) const;

 private:
  Cause found_from_waits() const;

  const std::vector<std::string> names_;
  std::set<int64_t> present_;        // ranks that can answer, but for rank 0
  std::set<int64_t> unanswered_;     // those that have not answered the health check
  std::optional<Cause> suspected_;   // the first rank that lost a peer, until the cause is known
  std::vector<WaitAnswer> answers_;  // wait-for edges received since then
  Deadline suspect_until_{};
  std::optional<Cause> cause_;
  Deadline announce_at_{};
  HealthDeadline health_;
  int64_t asker_ = 0;  // of the health check
};

}  // namespace titan
