#include "titan/tools/supervise.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>
#include <memory>
#include <thread>

#include "titan/base/error.h"
#include "titan/base/filesystem.h"
#include "titan/base/process.h"
#include "titan/checkpoint/catalogue.h"
#include "titan/checkpoint/storage.h"

namespace titan {
namespace {

constexpr const char* kSupervisorLock = "supervisor.lock";
/// An attempt that ends within a second has not trained; then the next one waits a second.
constexpr double kShortAttempt = 1;
constexpr std::chrono::seconds kPause{1};
/// An attempt that ran for so long has made the run's folder: ranks meet and open the device before that, in minutes.
constexpr double kLongAttempt = 900;

/// The newest step, up to `last`, from which a run can resume: 0 if there are only later ones, nothing if there is none
/// at all. Whether its bytes are sound is found when it is loaded.
std::optional<int64_t> newest_committed(const std::filesystem::path& root, int64_t last) {
  const std::unique_ptr<Storage> storage = make_posix_storage();
  std::optional<int64_t> newest;
  try {
    for (const FoundCheckpoint& found : find_checkpoints(*storage, root)) {
      if (found.is_export || found.is_unseen) continue;
      if (found.step <= last) return found.step;
      newest = 0;
    }
  } catch (const StorageError&) {  // not there, or its disk does not answer: nothing to resume from
  }
  return newest;
}

/// Whether storage failed for want of room: by the system's words in the message, since files that were deleted as the
/// run ended may have made room again.
bool lacks_room(const std::string& why, const std::filesystem::path& folder) {
  for (const int reason : std::array{ENOSPC, EDQUOT}) {
    if (why.find(std::strerror(reason)) != why.npos) return true;
  }
  std::error_code unknown;
  const std::filesystem::space_info space = std::filesystem::space(folder, unknown);
  return !unknown && space.available == 0;
}

/// With several hosts the launcher reports the highest of all exit codes, and a rank that lost a peer may end first.
bool is_consequence(int exit_code) {
  return exit_code == static_cast<int>(ExitCode::peer_failure) || exit_code == static_cast<int>(ExitCode::hang);
}

/// Ended by SIGTERM, at any moment of a rank's start.
bool was_interrupted(int exit_code) {
  return exit_code == static_cast<int>(ExitCode::interrupted) || exit_code == 128 + SIGTERM;
}

/// Exit codes of srun or torchrun themselves, or of ranks that they ended by SIGTERM or SIGKILL.
bool comes_from_launcher(int exit_code) {
  return exit_code == 1 || was_interrupted(exit_code) || exit_code == 128 + SIGKILL;
}

/// The code of the rank that failed first, if the launcher's is not it.
int own_exit_code(const Supervision& supervision, int exit_code, const std::optional<FailedRank>& failed) {
  const bool may_differ =
      is_consequence(exit_code) || (supervision.has_outer_launcher && comes_from_launcher(exit_code));
  if (may_differ && failed && failed->exit_code != 0 && !is_consequence(failed->exit_code)) return failed->exit_code;
  // A job script that got a signal itself does not call restart, so the launcher sent this one because another rank
  // failed.
  return supervision.has_outer_launcher && was_interrupted(exit_code) ? static_cast<int>(ExitCode::peer_failure)
                                                                      : exit_code;
}

/// Nothing for a record that cannot be read, too: the next start reports that.
std::optional<RecordedDisagreement> readable_disagreement(const std::filesystem::path& folder) {
  try {
    return read_disagreement(folder);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// The newest committed step that can be trusted; nothing: there is none.
std::optional<int64_t> newest_trusted(const Supervision& supervision) {
  std::optional<int64_t> limit;
  try {
    limit = last_agreeing_step(supervision.folder, supervision.checkpoints);
  } catch (const Error&) {  // the next start reports that
  }
  return newest_committed(supervision.checkpoints, limit.value_or(std::numeric_limits<int64_t>::max()));
}

/// After exit code 77 the rank that ended first is not the cause: all ranks end. The attempt's rank and host become
/// those that the check named. They are cleared if it named several ranks (two replicas differ) or wrote no record
/// (LibTorch's products are wrong, which its settings may cause).
void blame_named_rank(EndedAttempt& attempt, const std::filesystem::path& folder, double begin) {
  if (attempt.exit_code != static_cast<int>(ExitCode::silent_corruption)) return;
  attempt.rank.reset();
  attempt.host.clear();
  const std::optional<RecordedDisagreement> found = readable_disagreement(folder);
  attempt.trust_is_unknown = !found || found->time < begin;
  if (attempt.trust_is_unknown || found->ranks.size() != 1) return;
  attempt.rank = found->ranks.front();
  attempt.host = found->hosts.front();
}

EndedAttempt ended_attempt(const Supervision& supervision, const AttemptEnd& end) {
  EndedAttempt attempt;
  attempt.supervisor = supervision.supervisor;
  attempt.failed = end.ranks.failed;
  attempt.ended = end.ranks.ended;
  attempt.exit_code = end.ranks.exit_code;
  attempt.rank = end.ranks.rank;
  attempt.host = supervision.host;
  attempt.why = end.ranks.sentence;
  attempt.was_asked = end.ranks.was_asked;
  std::optional<FailedRank> failed = read_failure(supervision.folder);
  if (failed && failed->time < end.begin) failed.reset();  // of an earlier attempt
  attempt.exit_code = own_exit_code(supervision, attempt.exit_code, failed);
  if (failed) {
    // The launcher ends later than the rank: up to a minute, until others notice that it is gone.
    if (supervision.has_outer_launcher) attempt.failed = std::min(attempt.failed, failed->time);
    if (attempt.why.empty()) attempt.why = failed->text;
    if (end.ranks.signal == 0) attempt.rank = failed->rank;
    if (attempt.rank == failed->rank) attempt.host = failed->host;
  }
  blame_named_rank(attempt, supervision.folder, end.begin);
  attempt.held = end.held;
  attempt.committed = newest_trusted(supervision);
  if (attempt.why.empty() && attempt.exit_code != 0) {
    attempt.why = fmt::format("the ranks ended with exit code {}", attempt.exit_code);
  }
  const std::optional<AttemptProgress> progress = read_progress(supervision.folder);
  if (progress && progress->began >= end.begin) {
    attempt.began_at = progress->began_at;
    attempt.reached = progress->step;
    attempt.saved_step = progress->saved_step;
    attempt.lost_seconds = lost_seconds(*progress, attempt.next_step(), attempt.failed);
  }
  attempt.disk_is_full = lacks_room(attempt.why, supervision.folder);
  return attempt;
}

/// The lock of the folder; throws Error(launcher) if another supervisor holds it.
std::unique_ptr<LockFile> take_folder(const Supervision& supervision) {
  make_folders(supervision.folder);
  const std::filesystem::path path = supervision.folder / kSupervisorLock;
  auto lock = std::make_unique<LockFile>(path, supervision.supervisor);
  if (lock->state() == LockFile::State::taken) {
    throw Error(ExitCode::launcher,
                fmt::format("{} is supervised already, by {}; end that one, or name another folder in job.dump_folder",
                            supervision.folder.string(), lock->detail()));
  }
  if (lock->state() == LockFile::State::unlockable) {
    std::cerr << fmt::format(
        "titan_train launch: warning: {} cannot be locked ({}); make sure that no other "
        "supervisor starts a run there\n",
        path.string(), lock->detail());
  }
  return lock;
}

LaunchEnd launch_or_failure(const LaunchRequest& request) {
  if (request.attempt == 0) return launch_attempt(request);
  try {
    return launch_attempt(request);
  } catch (const Error& error) {  // a machine that is short of processes at this moment may have some later
    LaunchEnd end;
    end.exit_code = static_cast<int>(error.code());
    end.failed = end.ended = wall_time();
    end.sentence = error.what();
    return end;
  }
}

/// Whether `attempts`, all that the record holds, lack those that this supervisor has recorded.
bool lost_record(const Supervision& supervision, std::span<const EndedAttempt> attempts) {
  const auto is_own = [&](const EndedAttempt& attempt) { return attempt.supervisor == supervision.supervisor; };
  return supervision.follows_restart && std::none_of(attempts.begin(), attempts.end(), is_own);
}

/// Device and inode of the folder: they differ if it was made again or another disk is mounted there. Nothing if there
/// is none.
std::optional<std::pair<dev_t, ino_t>> identity_of(const std::filesystem::path& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) return std::nullopt;
  return std::pair(status.st_dev, status.st_ino);
}

/// Whether the run's folder was there and is not any more. A run may fail before it makes it, but not late.
bool is_lost(const Supervision& supervision, const AttemptEnd& end) {
  if (end.folder_is_lost) return true;
  std::error_code unknown;
  const bool ran_long = end.begin > 0 && end.ranks.ended - end.begin > kLongAttempt;
  return ran_long && !std::filesystem::exists(supervision.folder, unknown);
}

/// Returns the reason if `attempt` cannot be recorded.
std::string record(const Supervision& supervision, const EndedAttempt& attempt) {
  try {
    // A run may fail before it makes its folder.
    if (supervision.counts_by_record && attempt.restarts) make_folders(supervision.folder);
    return append_attempt(supervision.folder, attempt);
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

bool follows_failure() {
  const char* const value = std::getenv("TITAN_RESTARTED");
  return value && *value;
}

std::vector<EndedAttempt> recorded_attempts(const Supervision& supervision, std::string& problem) {
  std::vector<EndedAttempt> attempts;
  std::vector<int64_t> unreadable;
  for (std::optional<EndedAttempt>& read : read_attempt_lines(supervision.folder)) {
    if (!read) {
      unreadable.push_back(std::ssize(attempts) + 1);
      read.emplace();
      read->supervisor = supervision.supervisor;
    }
    attempts.push_back(*std::move(read));
  }
  if (!unreadable.empty()) {
    problem = fmt::format("warning: {}:{}: {} no record of an attempt; counted as {} that committed no step",
                          (supervision.folder / kAttemptsFile).string(), fmt::join(unreadable, ","),
                          unreadable.size() == 1 ? "this line is" : "these lines are",
                          unreadable.size() == 1 ? "one" : "attempts");
  }
  return attempts;
}

RestartDecision judge_attempt(const Supervision& supervision, const AttemptEnd& end,
                              std::vector<EndedAttempt>& attempts) {
  EndedAttempt attempt = ended_attempt(supervision, end);
  RestartDecision decision = decide_restart(supervision.restarts, attempts, attempt);
  const std::string path = (supervision.folder / kAttemptsFile).string();
  // Else the run would begin anew at step 0, in a folder that hides the lost one.
  if (decision.restarts && is_lost(supervision, end)) {
    return {
        false, static_cast<int>(ExitCode::storage),
        fmt::format("not started again: the run's folder {} is not there any more; see whether its disk is mounted; {}",
                    supervision.folder.string(), attempt.why)};
  }
  if (decision.restarts && lost_record(supervision, attempts)) {
    return {false, static_cast<int>(ExitCode::storage),
            fmt::format("not started again: {} does not hold the attempts before this one; see whether its disk is "
                        "mounted; {}",
                        path, attempt.why)};
  }
  attempt.restarts = decision.restarts;
  attempt.sentence = decision.sentence;
  if (decision.sentence.empty()) return decision;
  if (const std::string problem = record(supervision, attempt); !problem.empty()) {
    if (decision.restarts && supervision.counts_by_record) {
      return {
          false, attempt.exit_code,
          fmt::format("not started again, since this restart cannot be recorded in {}, and so not be counted: {}; {}",
                      path, problem, attempt.why)};
    }
    decision.sentence += fmt::format("; warning: this is not recorded: {}", problem);
  }
  attempts.push_back(std::move(attempt));
  // Not those of another run that holds the folder, because of which this one was refused.
  const LockFile run_lock(supervision.folder / kRunLock, supervision.supervisor);
  if (run_lock.state() != LockFile::State::taken) forget_attempt(supervision.folder);
  return decision;
}

int launch_with_restarts(LaunchRequest request, const Supervision& supervision) {
  std::unique_ptr<LockFile> lock = take_folder(supervision);
  const auto identity = identity_of(supervision.folder);
  // Kept in memory, too: on a full disk, or in a folder that is removed, lines are lost.
  std::vector<EndedAttempt> attempts = read_attempts(supervision.folder);
  for (;; ++request.attempt) {
    AttemptEnd end{.begin = wall_time(), .ranks = {}};
    end.held = newest_trusted(supervision).value_or(0);
    end.ranks = launch_or_failure(request);
    if (lock->state() == LockFile::State::held && !lock->is_in_place()) {
      end.folder_is_lost = identity_of(supervision.folder) != identity;
      // Somebody removed the file alone, as a purge of old files does.
      if (!end.folder_is_lost) lock = take_folder(supervision);
    }
    const RestartDecision decision = judge_attempt(supervision, end, attempts);
    const std::string sentence =
        without_printed(decision.sentence.empty() ? end.ranks.sentence : decision.sentence, end.ranks);
    if (!sentence.empty()) std::cerr << fmt::format("titan_train launch: {}\n", sentence) << std::flush;
    if (!decision.restarts) return decision.exit_code;
    // What fails at once, a machine that starts no more processes for example, may not fail a little later.
    if (wall_time() - end.begin < kShortAttempt) std::this_thread::sleep_for(kPause);
  }
}

}  // namespace titan
