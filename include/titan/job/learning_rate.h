// The learning rate as a pure function of the step, without scheduler state. The trainer evaluates it once per step,
// `titan_train lr-table` for all steps. The optimizer applies the multipliers of parameter groups.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "titan/config/job_config.h"

namespace titan {

struct LearningRateSchedule {
  LrSchedulerSection options = {};  // total_steps is set, and the warm-up is at most as long
  double peak = 1.0;

  int64_t total_steps() const { return *options.total_steps; }
  /// The multiplier of the peak rate in step `step` (1-based), by options.formula.
  double factor(int64_t step) const;
  double rate(int64_t step) const { return peak * factor(step); }
};

/// Requires a checked config. Appends a sentence to `notes` for each value that was clipped.
LearningRateSchedule make_schedule(const JobConfig& config, std::vector<std::string>& notes);

}  // namespace titan
