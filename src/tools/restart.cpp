#include "titan/tools/restart.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <vector>

#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {
namespace {

bool has_code(const EndedAttempt& attempt, ExitCode code) { return attempt.exit_code == static_cast<int>(code); }

/// A request to end that was sent to a rank instead of the supervisor ends the run just as well.
bool ended_on_request(const EndedAttempt& last) {
  if (last.was_asked) return true;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    if (last.exit_code == 128 + signal) return true;
  }
  return false;
}

/// Why a restart cannot mend what ended `last`, from its exit code; empty if it can.
std::string unmendable(const EndedAttempt& last) {
  if (has_code(last, ExitCode::bad_config)) return "the same config would be refused again";
  if (has_code(last, ExitCode::bad_data)) return "the same data would be refused again";
  if (has_code(last, ExitCode::non_finite)) return "the same steps usually give the same numbers again";
  if (has_code(last, ExitCode::storage) && last.disk_is_full) return "the disk is full: make room";
  if (has_code(last, ExitCode::not_started)) return "the program cannot be started";
  return {};
}

/// Whether the end may be the fault of the rank's host: not a wrong config, a full disk or a folder that another run
/// holds.
bool accuses_host(const EndedAttempt& attempt) {
  return attempt.rank && !attempt.host.empty() && !ended_on_request(attempt) && unmendable(attempt).empty() &&
         !has_code(attempt, ExitCode::launcher);
}

/// The attempts of one supervisor, in order, with the newest committed step before each.
class Attempts {
 public:
  Attempts(std::span<const EndedAttempt> earlier, const EndedAttempt& last) {
    for (const EndedAttempt& attempt : earlier) {
      if (attempt.supervisor == last.supervisor) all_.push_back(&attempt);
    }
    all_.push_back(&last);
  }

  const EndedAttempt& last() const { return *all_.back(); }
  bool is_first() const { return all_.size() == 1; }
  int64_t restarts() const { return std::ssize(all_) - 1; }

  /// The newest step that was ever known to be committed and not put aside after a disagreement.
  int64_t newest_known() const {
    int64_t newest = 0;
    for (const EndedAttempt* attempt : all_) {
      newest =
          std::max({newest, attempt->held, attempt->began_at, attempt->saved_step, attempt->committed.value_or(0)});
      if (has_code(*attempt, ExitCode::silent_corruption) && attempt->committed) newest = *attempt->committed;
    }
    return newest;
  }

  /// Restarts in a row, up to the last one, that have committed no step which was not committed before.
  int64_t without_progress() const {
    int64_t count = 0, newest = 0;
    for (size_t i = 0; i < all_.size(); ++i) {
      const int64_t committed = all_[i]->committed.value_or(0);
      count = i == 0 || committed > newest ? 0 : count + 1;
      newest = std::max({newest, committed, all_[i]->began_at});
    }
    return count;
  }

  /// Whether replicas disagreed before, too, and no step was committed since. The restart between has recomputed the
  /// same steps from the last checkpoint on which all agreed.
  bool disagreed_again() const {
    if (!has_code(last(), ExitCode::silent_corruption)) return false;
    for (size_t back = 1; back <= static_cast<size_t>(without_progress()) && back < all_.size(); ++back) {
      if (has_code(*all_[all_.size() - 1 - back], ExitCode::silent_corruption)) return true;
    }
    return false;
  }

 private:
  std::vector<const EndedAttempt*> all_;
};

/// Why the run is not started again; empty if it is.
std::string reason_to_stop(int64_t restarts, const Attempts& attempts) {
  const EndedAttempt& last = attempts.last();
  if (ended_on_request(last)) return "a signal asked it to end";
  if (const std::string reason = unmendable(last); !reason.empty()) return reason;
  if (attempts.is_first() && has_code(last, ExitCode::launcher))
    return "its first start failed: correct what is said here";
  if (last.trust_is_unknown) return "no record says which of its checkpoints can be trusted";
  if (attempts.disagreed_again()) {
    return fmt::format("the same steps, computed again from step {}, disagreed again", last.next_step());
  }
  if (attempts.restarts() >= restarts) {
    return fmt::format("{} of {} restarts are used", attempts.restarts(), restarts);
  }
  if (attempts.without_progress() >= kRestartsWithoutProgress) {
    return fmt::format("{} restarts in a row committed no step after step {}", attempts.without_progress(),
                       attempts.newest_known());
  }
  return {};
}

}  // namespace

RestartDecision decide_restart(int64_t restarts, std::span<const EndedAttempt> earlier, const EndedAttempt& last) {
  const bool is_ordinary =
      last.exit_code == 0 || has_code(last, ExitCode::requeue) || has_code(last, ExitCode::interrupted);
  if (is_ordinary) return {false, last.exit_code, {}};
  const Attempts attempts(earlier, last);
  const std::string suspects = suspect_words(earlier, last);
  // Without this, the run would begin anew at step 0 and, where a disk is missing, hide what it has computed.
  if (!last.committed && attempts.newest_known() > 0 && !ended_on_request(last)) {
    return {false, static_cast<int>(ExitCode::storage),
            fmt::format("not started again: the folder of its checkpoints, which held step {}, has none now; see "
                        "whether its disk is mounted; {}{}",
                        attempts.newest_known(), last.why, suspects)};
  }
  if (const std::string reason = reason_to_stop(restarts, attempts); !reason.empty()) {
    return {false, last.exit_code, fmt::format("not started again, since {}; {}{}", reason, last.why, suspects)};
  }
  const int64_t steps = last.lost_steps();
  return {true, 0,
          fmt::format("restart {} of {} from step {}: {}; lost {} step{} and {:.1f} s of training{}",
                      attempts.restarts() + 1, restarts, last.next_step(), last.why, steps, steps == 1 ? "" : "s",
                      last.lost_seconds, suspects)};
}

std::string suspect_words(std::span<const EndedAttempt> earlier, const EndedAttempt& last) {
  if (!accuses_host(last)) return {};
  std::vector<std::string> ranks;
  for (const EndedAttempt& attempt : earlier) {
    if (attempt.host == last.host && accuses_host(attempt)) ranks.push_back(std::to_string(*attempt.rank));
  }
  ranks.push_back(std::to_string(*last.rank));
  if (ranks.size() < 2) return {};
  return fmt::format("; host {} failed {} times in this run (ranks {}): suspect", last.host, ranks.size(),
                     join(ranks, ", "));
}

double lost_seconds(const AttemptProgress& progress, int64_t step, double failed) {
  const double since = progress.saved_step > 0 && progress.saved_step == step ? progress.saved : progress.began;
  return std::max(0.0, failed - since);
}

}  // namespace titan
