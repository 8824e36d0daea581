// An attempt is one start of all ranks of a run, until all have ended. What it leaves in the run's folder:
//   progress.json   rank 0 rewrites it after every step: how far the attempt got
//   failure.json    by the first rank that fails, or that sees another one fail: which rank it was
//   disagreement.json  by rank 0 before exit code 77: the last step on which ranks agreed (train/state_check.h and
//                  src/train/replay_check.h); the run that goes back to that step renames it to disagreement-N.json
//   attempts.jsonl  a line for each attempt that was supervised (tools/restart.h), and what followed it
// The first two are removed when the next attempt starts. Knows nothing of why a run is started again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace titan {

inline constexpr const char* kDisagreementFile = "disagreement.json";
inline constexpr const char* kAttemptsFile = "attempts.jsonl";
/// Rank 0 holds a lock on it while a run uses the folder.
inline constexpr const char* kRunLock = "run.lock";

/// Times are seconds since 1970.
struct AttemptProgress {
  int64_t began_at = 0;    // the step that it began with; 0: at the beginning
  double began = 0;        // when training began
  int64_t step = 0;        // the newest step that is done
  int64_t saved_step = 0;  // of the newest committed checkpoint of this attempt; 0: none
  double saved = 0;        // when that save began

  bool operator==(const AttemptProgress&) const = default;
};

/// Rewrites one short line in place, without syncing: a few microseconds for each step. A full disk costs the file;
/// training continues. Thread-safe, since the thread that writes checkpoints reports them.
class ProgressFile {
 public:
  ProgressFile(const std::filesystem::path& folder, int64_t began_at);
  ~ProgressFile();
  ProgressFile(const ProgressFile&) = delete;
  ProgressFile& operator=(const ProgressFile&) = delete;

  void add_step(int64_t step);
  /// A save of `step` begins; what is computed from now on is lost if the run fails and resumes from it.
  void begin_save(int64_t step);
  /// The checkpoint of `step` is committed.
  void add_save(int64_t step);

 private:
  void write();

  std::mutex mutex_;
  AttemptProgress progress_;
  std::map<int64_t, double> begun_saves_;  // by step; more than one if a save fails or another waits for it
  int descriptor_ = -1;
};

/// Nothing if the file is missing or unreadable: no rank of the attempt has begun to train.
std::optional<AttemptProgress> read_progress(const std::filesystem::path& folder);

/// The rank that ended an attempt.
struct FailedRank {
  int64_t rank = 0;
  std::string host;
  int exit_code = 0;  // 0: not known, it was killed or hangs
  std::string text;   // its message, or that of the rank that lost it
  double time = 0;    // when this was written

  bool operator==(const FailedRank&) const = default;
};

/// Writes failure.json unless an earlier rank has: later failures are consequences. Problems are ignored; the launcher
/// then knows less.
void note_failure(const std::filesystem::path& folder, const FailedRank& failed);
std::optional<FailedRank> read_failure(const std::filesystem::path& folder);

/// Removes progress.json and failure.json.
void forget_attempt(const std::filesystem::path& folder);

/// What disagreement.json holds: ranks disagreed about weights or moments, the memory of one has changed, or a replay
/// gave other bits.
struct RecordedDisagreement {
  int64_t step = 0;                // that found it
  int64_t last_agreeing_step = 0;  // checkpoints up to it can be trusted
  std::vector<int64_t> ranks;      // that are named
  std::vector<std::string> hosts;  // of these ranks, one for each
  std::string what;
  std::string checkpoint_folder;  // under the run's folder; empty: the run saves none
  double time = 0;                // when this was written

  bool operator==(const RecordedDisagreement&) const = default;
};

/// Returns the reason if it cannot be written.
std::string record_disagreement(const std::filesystem::path& folder, const RecordedDisagreement& found);
/// Nothing if there is no such file. Throws Error(storage) if it cannot be read, or does not hold what this program
/// writes: it says which checkpoints cannot be trusted.
std::optional<RecordedDisagreement> read_disagreement(const std::filesystem::path& folder);
/// The step in disagreement.json up to which checkpoints in `checkpoints` can be trusted. Nothing if there is no such
/// file, or if the run that wrote it saved no checkpoints there. Throws as read_disagreement.
std::optional<int64_t> last_agreeing_step(const std::filesystem::path& folder,
                                          const std::filesystem::path& checkpoints);
/// Call it when later checkpoints have been renamed: renames disagreement.json, too, so that it does not limit
/// checkpoints that are saved from now on. Returns the reason if it cannot.
std::string settle_disagreement(const std::filesystem::path& folder);

/// A line of attempts.jsonl: how a supervised attempt ended.
struct EndedAttempt {
  std::string supervisor;            // the launcher or job that started it
  double failed = 0;                 // when its first rank ended
  double ended = 0;                  // when all had
  int exit_code = 0;                 // of the rank that failed first; 128 + signal if it was killed
  std::optional<int64_t> rank;       // that failed; none: not known
  std::string host;                  // of that rank
  std::string why;                   // "rank 1 was killed by signal 9 (Killed)"
  int64_t began_at = 0;              // the step that it began with
  int64_t reached = 0;               // its newest step
  int64_t saved_step = 0;            // the newest that it committed itself; 0: none
  std::optional<int64_t> committed;  // the newest committed step in the folder when it had ended; none: there is none
  int64_t held = 0;                  // the same when it was started; 0: none, or not known
  double lost_seconds = 0;           // of training that must be repeated
  bool was_asked = false;            // a signal asked it to end
  bool disk_is_full = false;
  /// It ended with 77, and no record says which checkpoints can be trusted. Not written: such an attempt is the last.
  bool trust_is_unknown = false;
  bool restarts = false;  // it is followed by another attempt
  std::string sentence;   // what the supervisor said

  /// The step that the next attempt begins with.
  int64_t next_step() const { return committed.value_or(0); }
  int64_t lost_steps() const { return reached > next_step() ? reached - next_step() : 0; }
  bool operator==(const EndedAttempt&) const = default;
};

nlohmann::ordered_json to_json(const EndedAttempt& attempt);
/// Nothing for a line that is not one.
std::optional<EndedAttempt> attempt_from_line(std::string_view line);

/// All lines of attempts.jsonl, the oldest first; nothing for one that cannot be read.
std::vector<std::optional<EndedAttempt>> read_attempt_lines(const std::filesystem::path& folder);
/// The same without lines that cannot be read.
std::vector<EndedAttempt> read_attempts(const std::filesystem::path& folder);
/// Returns the reason if it cannot be written.
std::string append_attempt(const std::filesystem::path& folder, const EndedAttempt& attempt);

/// Seconds of a restart, by part.
struct RestartTimes {
  double ending = 0;      // from the first failure until all ranks had ended
  double start = 0;       // until rank 0 was loaded and had read its config
  double rendezvous = 0;  // until all ranks had met
  double build = 0;       // until model, optimizer and data were there
  double load = 0;        // until the checkpoint was loaded
  double first_step = 0;  // until the first step was done

  double total() const { return ending + start + rendezvous + build + load + first_step; }
};

/// The event of metrics.jsonl: an attempt that follows a failed one has done its first step.
struct RestartReport {
  int64_t step = 0;  // the first of this attempt
  EndedAttempt failed;
  RestartTimes times = {};
  int64_t restarts = 0;  // of the run so far, over all its supervisors

  /// Steps that the failed attempt had done and this one repeats. Counted from what was loaded: a damaged checkpoint
  /// costs more than the supervisor expected.
  int64_t lost_steps() const { return failed.reached >= step ? failed.reached - step + 1 : 0; }
};

std::string json_line(const RestartReport& report);
/// The parts of the time that the restart took, for the log.
std::string restart_words(const RestartReport& report);

}  // namespace titan
