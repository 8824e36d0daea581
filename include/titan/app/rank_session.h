// One rank's stay in a run: who it is, its log, and the promise that whatever ends it early ends the others, too.
// Shared by the subcommands that run on several ranks; a single process is the case with nobody to tell.
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
  /// Rank 0 logs to the console, every other rank to logs/rank-NNNN.log of the dump folder, and warnings and errors to
  /// standard error as well. LOG_RANK, a comma list or "all", names ranks that log to the console, too.
  /// `final_message`: what the work has said when another thread ends the process; null: nothing.
  RankSession(const Schema& schema, const JobConfig& config, Launch launch,
              std::shared_ptr<FinalMessage> final_message = nullptr);

  const Log& log() const { return log_; }

  /// Meets the other ranks, does `work` as one of them, and returns the exit code to end with. What `work` throws is
  /// told to the others before `tear_down` lets go of what it made. Throws on rank 0 and in a single process; the
  /// errors of other ranks go to their logs.
  int run(const std::function<ExitCode(const World& world)>& work, const std::function<void()>& tear_down);

 private:
  int run_as_rank(const std::function<ExitCode(const World& world)>& work, const std::function<void()>& tear_down);
  Rendezvous meet();
  RankFacts own_facts() const;
  /// Moves this rank to the cores near its GPU, unless it is there.
  void move_near(const DeviceInfo& device) const;
  /// The library's own record of collectives, beside this one's.
  void prepare_nccl() const;
  /// Where records of collectives go: the beginning of the files' names.
  std::string trace_prefix() const;
  void leave(AbortWatcher& watcher) const;
  /// What the groups did last, into the folder for it; once, and nothing when they have done nothing.
  void write_trace();

  const Schema& schema_;
  const JobConfig& config_;
  Launch launch_;
  std::shared_ptr<FinalMessage> final_message_;
  Log log_;
  std::shared_ptr<CollectiveTrace> trace_;  // null: not wanted
  std::atomic<bool> trace_written_ = false;
  bool rank_zero_tells_ = false;  // of this rank's failure
};

/// Who this process is, by a config without problems.
Launch detect_launch(const JobConfig& config);

}  // namespace titan
