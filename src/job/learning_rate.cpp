#include "titan/job/learning_rate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace titan {
namespace {

/// Rounds halves to even, as Python's round does.
int64_t round_half_even(double value) { return static_cast<int64_t>(std::nearbyint(value)); }

double decayed(DecayType type, double progress) {
  switch (type) {
    case DecayType::linear:
      return 1.0 - progress;
    case DecayType::sqrt:
      return 1.0 - std::sqrt(progress);
    case DecayType::cosine:
      return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  }
  return 1.0;
}

double factor_2024(const LearningRateSchedule& schedule, int64_t step) {
  const int64_t s = step - 1;
  const int64_t warmup = schedule.options.warmup_steps;
  if (s < warmup) return static_cast<double>(s + 1) / static_cast<double>(warmup + 1);
  const int64_t decay_steps = std::max<int64_t>(1, schedule.total_steps() - warmup);
  return std::max(0.0, 1.0 - static_cast<double>(s - warmup) / static_cast<double>(decay_steps));
}

int64_t decay_steps_2026(const LearningRateSchedule& schedule, int64_t warmup) {
  const int64_t rest = schedule.total_steps() - warmup;
  if (!schedule.options.decay_ratio) return rest;
  return std::min(rest, round_half_even(static_cast<double>(schedule.total_steps()) * *schedule.options.decay_ratio));
}

double factor_2026(const LearningRateSchedule& schedule, int64_t step) {
  const int64_t warmup = std::min(schedule.options.warmup_steps, schedule.total_steps());
  const int64_t decay = decay_steps_2026(schedule, warmup);
  const int64_t stable = schedule.total_steps() + 1 - warmup - decay;
  if (step <= warmup) return static_cast<double>(step) / static_cast<double>(warmup);
  if (step <= warmup + stable) return 1.0;
  if (decay <= 0) return 1.0;
  const double progress = std::min(1.0, static_cast<double>(step - warmup - stable) / static_cast<double>(decay));
  return schedule.options.min_lr_factor +
         (1.0 - schedule.options.min_lr_factor) * decayed(schedule.options.decay_type, progress);
}

}  // namespace

double LearningRateSchedule::factor(int64_t step) const {
  return options.formula == RateFormula::december_2024 ? factor_2024(*this, step) : factor_2026(*this, step);
}

LearningRateSchedule make_schedule(const JobConfig& config, std::vector<std::string>& notes) {
  LearningRateSchedule schedule{config.lr_scheduler, config.optimizer.lr};
  if (!schedule.options.total_steps) schedule.options.total_steps = config.training.steps;
  if (schedule.options.formula == RateFormula::december_2024) return schedule;
  if (schedule.options.warmup_steps > schedule.total_steps()) {
    notes.push_back(fmt::format("lr_scheduler.warmup_steps = {} is more than all {} steps; the whole run warms up",
                                schedule.options.warmup_steps, schedule.total_steps()));
    schedule.options.warmup_steps = schedule.total_steps();
  }
  if (schedule.options.decay_ratio) {
    const int64_t wanted = round_half_even(static_cast<double>(schedule.total_steps()) * *schedule.options.decay_ratio);
    const int64_t rest = schedule.total_steps() - schedule.options.warmup_steps;
    if (wanted > rest) {
      notes.push_back(fmt::format("warm-up ({}) and decay ({}) together are more than all {} steps; the decay takes {}",
                                  schedule.options.warmup_steps, wanted, schedule.total_steps(), rest));
    }
  }
  return schedule;
}

}  // namespace titan
