// Measures the interval between two reports and makes a StepReport from it: tokens per second, FLOPS, waits, time left.
// Owned by the reporter; receives every finished step; a report starts a new interval. Uses the clock; does not know
// how a report is written.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "titan/distributed/communicator.h"
#include "titan/plan/description.h"
#include "titan/report/step_report.h"
#include "titan/stream/chunk_stream.h"
#include "titan/train/device.h"

namespace titan {

/// The extremes of step time and memory over the ranks of `world`, and the largest of their losses. Collective: the
/// constructor sends. The result arrives after the work already enqueued on the device, so a caller that reads it a
/// step later does not wait for the device.
class RankComparison {
 public:
  /// `own_loss`: mean over this rank's valid tokens; none if it has none.
  RankComparison(const StepReport& own, std::optional<double> own_loss, Communicator& world, const at::Device& device);
  bool is_done() const { return extremes_.is_done(); }
  void wait() { extremes_.wait(); }
  /// Call it once the result has arrived.
  void add_to(StepReport& report) const;

 private:
  HostCopy extremes_;
};

class StepMeter {
 public:
  using Clock = std::chrono::steady_clock;

  /// `tokens_per_step`: of all `ranks`; rates are per rank. The first interval begins at `start`.
  StepMeter(const DeviceInfo& device, int64_t total_steps, int64_t tokens_per_step, int64_t flops_per_token,
            int64_t ranks = 1, Clock::time_point start = Clock::now());

  /// Totals of the run's earlier starts: tokens_seen and skipped_steps continue from there.
  void continue_after(int64_t tokens, int64_t skipped_steps) {
    tokens_before_ = tokens;
    skipped_steps_ = skipped_steps;
  }
  /// From now on reports have a step's statistics under the names that the plan has, and the rates of its updates.
  void name_statistics(const Plan& plan) {
    statistics_ = plan.statistics, updates_ = plan.request.updates;
    first_update_statistic_ = plan.first_update_statistic;
  }
  /// Once per finished step.
  void add_step(double data_wait_seconds, bool skipped);
  /// The report of `step`, over the interval since the last report; starts a new interval.
  StepReport report(int64_t step, double learning_rate, const StepValues& values, const DataCounters& counters,
                    Clock::time_point now = Clock::now());
  /// The same without a new interval, for the status between two reports.
  StepReport measure(int64_t step, double learning_rate, const StepValues& values, const DataCounters& counters,
                     Clock::time_point now = Clock::now()) const;
  /// Time spent elsewhere (validation) does not count as training time.
  void exclude(Clock::duration time) { interval_start_ += time; }
  int64_t skipped_steps() const { return skipped_steps_; }

 private:
  const DeviceInfo& device_;
  int64_t total_steps_;
  int64_t tokens_per_step_;
  int64_t flops_per_token_;
  int64_t ranks_;
  std::optional<double> peak_flops_;
  Clock::time_point interval_start_;
  int64_t interval_steps_ = 0;
  double interval_wait_ = 0;
  int64_t tokens_before_ = 0;
  int64_t steps_seen_ = 0;
  int64_t skipped_steps_ = 0;
  std::vector<StatisticDescription> statistics_;
  size_t first_update_statistic_ = 0;  // of statistics_
  std::vector<UpdateDescription> updates_;
};

}  // namespace titan
