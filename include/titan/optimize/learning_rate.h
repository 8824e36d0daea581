// The learning rate as a pure function of the step: no scheduler state to save, resume or get wrong.
// The trainer asks it once per step, `titan_train lr-table` for all of them. Multipliers of parameter groups come on
// top of it, in the optimizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "titan/config/job_config.h"

namespace titan {

enum class DecayType { linear, sqrt, cosine };

struct LearningRateSchedule {
  Generation generation = Generation::last_2026;
  int64_t total_steps = 1;
  int64_t warmup_steps = 0;
  std::optional<double> decay_ratio;  // none: everything after the warm-up decays
  DecayType decay_type = DecayType::linear;
  double minimum_factor = 0.0;
  double peak = 1.0;

  /// What multiplies the peak in step `step` (1-based); torchtitan.md §4.6, the formula of the generation.
  double factor(int64_t step) const;
  double rate(int64_t step) const { return peak * factor(step); }
};

/// From a checked config. Sentences about values that had to be clipped are appended to `notes`.
LearningRateSchedule make_schedule(const JobConfig& config, std::vector<std::string>& notes);

}  // namespace titan
