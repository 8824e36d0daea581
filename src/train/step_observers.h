// Observers of a step, enabled by options: traces and memory snapshots (profiling.*), dumps and host waits (debug.*),
// and the comparison of a step's traffic with the plan.
#pragma once

#include <memory>
#include <span>

#include "titan/report/memory_snapshot.h"
#include "titan/report/step_profiler.h"
#include "titan/train/debug_dump.h"
#include "titan/train/run.h"

namespace titan {

class StepObservers {
 public:
  /// `run` must outlive it. `first_step`: of this process.
  StepObservers(Run& run, int64_t first_step);

  void begin_step(int64_t step);
  /// Before `step` is enqueued. Returns the dump that receives its results; null: none is due.
  DebugDump* begin_work(int64_t step, std::span<const BatchContext> microbatches);
  /// Whether the host must not wait in `step` (HostWaitCheck). Exempt are the first step, in which libraries
  /// initialise, steps that are dumped, and those in which weights and moments are hashed.
  bool watches_host(int64_t step) const;
  /// After `step` was enqueued.
  void end_work(int64_t step);
  /// `made`: there was data for the step.
  void end_step(int64_t step, bool made);

  void out_of_memory(int64_t last_step);
  void finish();

 private:
  std::unique_ptr<DebugDump> dump_of(int64_t step, std::span<const BatchContext> microbatches) const;
  bool checks_traffic(int64_t step) const;
  void check_traffic_of(int64_t step);
  void report_differences(const std::vector<std::string>& differences) const;

  Run& run_;
  int64_t first_step_;
  std::unique_ptr<StepProfiler> profiler_;      // null: off
  std::unique_ptr<MemorySnapshots> snapshots_;  // null: off
  std::unique_ptr<DebugDump> dump_;
  bool counts_traffic_ = false;    // of the step being enqueued
  bool traffic_is_known_ = false;  // one step was checked
};

}  // namespace titan
