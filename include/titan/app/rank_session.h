// One rank of a run, from rendezvous to exit: its log, and its failure, which ends the other ranks too. Used by the
// subcommands that run on several ranks; also works for a single process.
#pragma once

#include <atomic>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>

#include "titan/base/final_message.h"
#include "titan/base/log.h"
#include "titan/config/job_config.h"
#include "titan/config/schema.h"
#include "titan/distributed/collective_trace.h"
#include "titan/distributed/rendezvous.h"
#include "titan/report/attempt_record.h"

namespace titan {

struct DeviceInfo;

class RankSession {
 public:
  /// Rank 0 logs to the console. Every other rank logs to logs/rank-NNNN.log of the dump folder, and its warnings and
  /// errors also to standard error. LOG_RANK, a comma list or "all", names ranks that also log to the console.
  /// `final_message`: printed when another thread ends the process; may be null. `output_is_result`: the log's console
  /// is standard error.
  RankSession(const Schema& schema, const JobConfig& config, Launch launch,
              std::shared_ptr<FinalMessage> final_message = nullptr, bool output_is_result = false);

  const Log& log() const { return log_; }

  // A command calls join, works, and calls end after all that its work created is freed. It calls fail for an exception
  // of either, before it frees anything: freeing may wait for other ranks.

  /// Joins the rendezvous. The result is valid until `end`.
  const World& join();
  /// From now on, the first rank that fails or loses another is named in the folder's failure.json.
  void note_failures_in(const std::filesystem::path& folder);
  /// Reports the exception that is being handled to the other ranks, and remembers it for `end`.
  void fail();
  /// Leaves the other ranks, and returns the process's exit code: `code`, or that of the failure. A failure is thrown
  /// on rank 0 and in a single process; other ranks log it.
  int end(ExitCode code);

 private:
  Rendezvous rendezvous();
  RankFacts own_facts() const;
  /// Moves this rank to the cores near its GPU, unless it already runs there.
  void move_near(const DeviceInfo& device) const;
  /// Sets unset environment variables of NCCL, including those of its flight recorder.
  void prepare_nccl() const;
  /// Path prefix of the collective traces.
  std::string trace_prefix() const;
  void leave(AbortWatcher& watcher) const;
  int exit_code_of_failure();
  void note_failed_rank(FailedRank failed);
  /// Writes the collective trace to its folder, at most once; nothing if it is empty.
  void write_trace();

  const Schema& schema_;
  const JobConfig& config_;
  Launch launch_;
  std::shared_ptr<FinalMessage> final_message_;
  Log log_;
  std::shared_ptr<CollectiveTrace> trace_;  // null: disabled
  std::atomic<bool> trace_written_ = false;
  std::mutex mutex_;                       // guards the next: the watcher's thread uses it, too
  std::filesystem::path failures_folder_;  // empty: failures are not noted
  std::optional<Rendezvous> joined_;
  std::exception_ptr failure_;
  bool rank_zero_reports_ = false;  // rank 0 reports this rank's failure
};

/// Keeps freed memory in the process: returning activations to the system and faulting them in again every step costs
/// more than the step's arithmetic on small models.
void keep_freed_memory();

/// This process's rank and launcher, from a config without problems.
Launch detect_launch(const JobConfig& config);

}  // namespace titan
