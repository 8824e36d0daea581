// What a run reports: its start, each step in the log, in the files of its folder and on its page, and its end.
//
// On a GPU the results of a step are read one step later, behind the next step's work; with several ranks, what they
// compare comes another step later. A thread that ends the process because this one hangs takes over with
// report_last_lines(), so all state below the mutex is guarded.
#pragma once

#include <chrono>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

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
  int64_t batches_ready = 0;  // in the prefetch queue, when this step's was taken
  DataCounters counters;
  double own_share = 0;  // of the step's valid tokens, this rank's; 0 if it computes no loss
};

class RunReporter {
 public:
  /// `run` outlives it.
  explicit RunReporter(Run& run);

  /// Opens the files of the run's folder and reports the start. `first`: the first batch; null: there is none.
  void begin(const RunStart& start, const StepBatch* first);
  /// Reads the results of the step before, on a CPU of this step, and reports them when they are due. Returns what all
  /// ranks agreed to do. Throws Error(non_finite) under training.non_finite = abort.
  Requests add(EnqueuedStep step);
  /// The same for all steps that are not read yet.
  Requests catch_up();
  void add(const ValidationReport& report);
  void add(const SampleReport& report);
  /// The time since `start` was not spent on training steps.
  void exclude_since(std::chrono::steady_clock::time_point start);

  /// The steps are over: reads what is left, and reports the last step whether or not it was due.
  Requests end_steps();
  /// The run failed or this process is about to end: reports the steps whose results come within `patience`, nothing
  /// later. Thread-safe, and throws nothing.
  void report_last_lines(std::chrono::milliseconds patience = {});
  /// What was skipped; before the outcome of the run is reported.
  void report_skipped(const DataCounters& counters);
  /// Final loss, and where the outputs are.
  void end(bool stopped);

 private:
  /// A report that waits for the comparison of ranks.
  struct PendingReport {
    StepReport report;
    StepValues values;
    std::optional<double> own_loss;       // mean over this rank's valid tokens; none: it has none
    std::vector<MemoryRow> memory;        // after the first step
    std::optional<RankComparison> ranks;  // of several
  };

  void open_record(const StepBatch* first);
  bool is_due(int64_t step) const;
  Requests read_next();
  PendingReport report_of(const EnqueuedStep& read, const StepValues& values, StepReport report) const;
  void compare_ranks(PendingReport& made);
  /// Reports all that wait, once the comparisons are there.
  void flush();
  void report(PendingReport& made, bool compared);
  /// Warns of a step that was skipped or is a spike; throws Error(non_finite).
  void judge(const EnqueuedStep& read, const StepValues& values);
  bool aborts_run(const StepValues& values) const;
  template <class Report>
  void record(const Report& report);

  Run& run_;
  int64_t first_step_ = 1;   // of this process
  bool is_trained_ = false;  // its weights were loaded
  std::mutex mutex_;
  std::unique_ptr<RunRecord> record_;  // null on a rank that records nothing
  std::unique_ptr<StepMeter> meter_;
  StatusDisplay status_;
  int64_t allocation_retries_ = 0;  // reported so far
  std::deque<EnqueuedStep> enqueued_;
  std::deque<PendingReport> pending_;
  std::optional<EnqueuedStep> unreported_;  // the last one read, when it was not due
  std::optional<StepReport> last_;
  bool is_closed_ = false;  // by report_last_lines()
};

}  // namespace titan
