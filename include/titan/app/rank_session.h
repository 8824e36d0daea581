// One rank of a run, from rendezvous to exit: its log, and its failure, which ends the other ranks too. Used by the
// subcommands that run on several ranks; also works for a single process.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "titan/base/final_message.h"
#include "titan/base/log.h"
#include "titan/config/job_config.h"
#include "titan/config/schema.h"
#include "titan/distributed/collective_trace.h"
#include "titan/distributed/rendezvous.h"

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

  /// Joins the rendezvous, runs `work` as one of the ranks, and returns the process's exit code. An exception of `work`
  /// is reported to the other ranks before `tear_down` frees what `work` created. Throws on rank 0 and in a single
  /// process; other ranks log their errors.
  int run(const std::function<ExitCode(const World& world)>& work, const std::function<void()>& tear_down);

 private:
  int run_as_rank(const std::function<ExitCode(const World& world)>& work, const std::function<void()>& tear_down);
  Rendezvous rendezvous();
  RankFacts own_facts() const;
  /// Moves this rank to the cores near its GPU, unless it already runs there.
  void move_near(const DeviceInfo& device) const;
  /// Sets unset environment variables of NCCL, including those of its flight recorder.
  void prepare_nccl() const;
  /// Path prefix of the collective traces.
  std::string trace_prefix() const;
  void leave(AbortWatcher& watcher) const;
  /// Writes the collective trace to its folder, at most once; nothing if it is empty.
  void write_trace();

  const Schema& schema_;
  const JobConfig& config_;
  Launch launch_;
  std::shared_ptr<FinalMessage> final_message_;
  Log log_;
  std::shared_ptr<CollectiveTrace> trace_;  // null: disabled
  std::atomic<bool> trace_written_ = false;
  bool rank_zero_reports_ = false;  // rank 0 reports this rank's failure
};

/// Keeps freed memory in the process: returning activations to the system and faulting them in again every step costs
/// more than the step's arithmetic on small models.
void keep_freed_memory();

/// This process's rank and launcher, from a config without problems.
Launch detect_launch(const JobConfig& config);

}  // namespace titan
