// Starts a run again after failures: what surrounds the decision (restart.h). Reads what the ended attempt left in the
// run's folder, records the decision there, and, on one host, starts the ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "titan/report/attempt_record.h"
#include "titan/tools/launch.h"
#include "titan/tools/restart.h"

namespace titan {

struct Supervision {
  std::filesystem::path folder;       // job.dump_folder
  std::filesystem::path checkpoints;  // the folder of its checkpoints
  std::string supervisor;             // identifies this one: attempts of others do not count
  int64_t restarts = 0;               // the most that the user allows
  std::string host;                   // where ranks run whose host is not known otherwise
  /// This process knows of earlier attempts only what attempts.jsonl holds, so a restart that cannot be recorded there
  /// is not granted.
  bool counts_by_record = false;
  /// Another launcher started the ranks (srun, torchrun), and all that is known of it is its exit code. That need not
  /// be the code of the rank that failed: srun ends the other ranks by SIGTERM and reports the highest code, torchrun
  /// always reports 1.
  bool has_outer_launcher = false;
  bool follows_restart = false;  // a restart was granted before, so attempts.jsonl must hold it
};

/// True if a supervisor started this process after a failure (TITAN_RESTARTED in the environment).
bool follows_failure();

/// The attempts that the folder's record holds. A line that cannot be read counts as an attempt of `supervision` that
/// committed nothing; `problem` says which lines these are.
std::vector<EndedAttempt> recorded_attempts(const Supervision& supervision, std::string& problem);

/// What the supervisor itself knows of an attempt.
struct AttemptEnd {
  double begin = 0;             // when it was started, seconds since 1970; 0: not known
  int64_t held = 0;             // the newest committed step then; 0: none, or not known
  bool folder_is_lost = false;  // the supervisor's own file in the run's folder is gone
  LaunchEnd ranks;
};

/// Completes what is known of the attempt by what it left in the folder, decides, appends the decision to
/// attempts.jsonl and to `attempts`, which holds the earlier ones of the folder, and removes the attempt's own files.
/// Leaves the folder as it is if attempts that it must hold are not there: its disk may be missing.
RestartDecision judge_attempt(const Supervision& supervision, const AttemptEnd& end,
                              std::vector<EndedAttempt>& attempts);

/// Starts the ranks, and starts them again as decide_restart says. Returns the exit code of the last attempt. Throws
/// Error(launcher) if another supervisor holds the folder.
int launch_with_restarts(LaunchRequest request, const Supervision& supervision);

}  // namespace titan
