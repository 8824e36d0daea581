// What a run reports: its start, each step in the log, in the files of its folder and on its page, and its end.
//
// On a GPU the results of a step are read one step later, after the next step was enqueued; with several ranks, their
// comparison arrives another step later. A thread that ends the process because this one hangs calls
// report_last_lines(), so the mutex guards all state below it.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "titan/report/attempt_record.h"
#include "titan/report/run_record.h"
#include "titan/report/status_line.h"
#include "titan/train/memory_report.h"
#include "titan/train/run.h"
#include "titan/train/step_meter.h"

namespace titan {

/// A step whose work is enqueued.
struct EnqueuedStep {
  int64_t step = 0;
  double learning_rate = 0;
  StepReadback readback;
  double data_wait_seconds = 0;
  int64_t batches_ready = 0;  // batches in the prefetch queue when this step's batch was taken
  DataCounters counters;
  double own_share = 0;  // this rank's share of the step's valid tokens; 0 if it computes no loss
};

class RunReporter {
 public:
  /// `run` must outlive it.
  explicit RunReporter(Run& run);

  /// Opens the files of the run's folder and reports the start. `first`: the first batch; null: there is none.
  void begin(const StartingPoint& start, const StepBatch* first);
  /// Reads the results of the previous step (on a CPU, of this step) and reports them when due. Returns the requests
  /// that all ranks agreed on. Throws Error(non_finite) under training.non_finite.
  Requests add(EnqueuedStep step);
  /// The same for all steps that are not read yet.
  Requests catch_up();
  void add(const ValidationReport& report);
  void add(const SampleReport& report);
  void add(const StragglerReport& report);
  /// From now on asked why a step that ends the run is not finite: on all ranks, before the run ends. Its answer is
  /// part of the message.
  void explain_non_finite(std::function<std::string(int64_t step, const StepValues& values)> explain) {
    explain_ = std::move(explain);
  }
  /// Steps that the run has skipped, over all its starts; complete after catch_up().
  int64_t skipped_steps() const { return meter_->skipped_steps(); }
  /// A checkpoint of `step` begins to be saved, and is committed. Thread-safe.
  void begin_save(int64_t step);
  void note_save(int64_t step);
  /// Excludes the time since `start` from training time.
  void exclude_since(std::chrono::steady_clock::time_point start);

  /// After the last step: reads the remaining results, and reports the last step whether or not it is due.
  Requests end_steps();
  /// The run failed or this process is about to end: reports the steps whose results arrive within `patience`, and
  /// nothing after that. Thread-safe and does not throw.
  void report_last_lines(std::chrono::milliseconds patience = {});
  /// Reports what was skipped; call it before the outcome of the run is reported.
  void report_skipped(const DataCounters& counters);
  /// Reports the final loss and the output paths.
  void end(bool stopped);

 private:
  /// A report that waits for the comparison of the ranks.
  struct PendingReport {
    StepReport report;
    StepValues values;
    std::optional<double> own_loss;       // mean over this rank's valid tokens; none: it has none
    std::vector<MemoryRow> memory;        // after the first step
    std::optional<RankComparison> ranks;  // of several
  };

  void open_record(const StepBatch* first);
  bool is_due(int64_t step) const;
  /// The cost of the restart, if this process was started after a failure.
  void report_restart();
  Requests read_next();
  PendingReport report_of(const EnqueuedStep& read, const StepValues& values, StepReport report) const;
  void compare_ranks(PendingReport& made);
  /// Completes the pending reports; waits for their comparisons.
  void flush();
  void report(PendingReport& made, bool compared);
  /// Warns of a skipped step or a spike; throws Error(non_finite), with `cause` in the message.
  void judge(const EnqueuedStep& read, const StepValues& values, const std::string& cause = {});
  bool aborts_run(const StepValues& values) const;
  /// True if training.max_skipped_steps in a row are reached with one more.
  bool is_one_too_many() const;
  /// Throws Error(non_finite) after training.max_skipped_steps such steps in a row.
  void count_non_finite(const EnqueuedStep& read, const std::string& what);
  template <class Report>
  void record(const Report& report);

  Run& run_;
  int64_t first_step_ = 1;   // of this process
  bool is_trained_ = false;  // its weights were loaded
  std::mutex mutex_;
  std::unique_ptr<RunRecord> record_;       // null on a rank that records nothing
  std::unique_ptr<ProgressFile> progress_;  // on rank 0
  std::unique_ptr<StepMeter> meter_;
  StatusDisplay status_;
  int64_t allocation_retries_ = 0;  // reported so far
  int64_t non_finite_in_a_row_ = 0;
  std::function<std::string(int64_t, const StepValues&)> explain_;  // empty: no explanation
  std::deque<EnqueuedStep> enqueued_;
  std::deque<PendingReport> pending_;
  std::optional<EnqueuedStep> unreported_;  // the last one read, when it was not due
  std::optional<StepReport> last_;
  bool is_closed_ = false;  // by report_last_lines()
};

}  // namespace titan
