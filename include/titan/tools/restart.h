// Whether a run that ended is started again: one pure function, for `titan_train launch --restarts` on one host and for
// job scripts (`titan_train restart`, scripts/titan.sbatch). The supervisors around it are in supervise.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "titan/report/attempt_record.h"

namespace titan {

/// A failure that a restart mends is rarely met more often without a step between, and each attempt costs the start of
/// all ranks (NVIDIA's resiliency extension stops at the same number).
inline constexpr int64_t kRestartsWithoutProgress = 3;

struct RestartDecision {
  bool restarts = false;
  int exit_code = 0;     // of the supervisor, if it does not restart
  std::string sentence;  // what is done and why; empty for an ordinary end, which needs no supervisor's words
};

/// `earlier`: attempts of this run, the oldest first, those of other supervisors included: they count when hosts are
/// suspected and in nothing else. `last`: the one that has just ended. `restarts`: how many the user allows.
RestartDecision decide_restart(int64_t restarts, std::span<const EndedAttempt> earlier, const EndedAttempt& last);

/// "; host node7 failed 2 times in this run (ranks 3, 5): suspect", for a host where ranks failed twice or more, `last`
/// being the newest of these failures; else empty.
std::string suspect_words(std::span<const EndedAttempt> earlier, const EndedAttempt& last);

/// Seconds of training that are lost if a run that got as far as `progress` and failed at `failed` is started again
/// from `step`.
double lost_seconds(const AttemptProgress& progress, int64_t step, double failed);

}  // namespace titan
