// What a trainer makes of its steps' results: on a GPU a step later than they were enqueued, and when a run of several
// ranks reports a step, another one later; at once when the run ends.
#include <cmath>
#include <thread>
#include <tuple>

#include "titan/base/error.h"
#include "titan/train/trainer.h"

namespace titan {
namespace {

/// A number as people write it: the sign of a NaN means nothing.
std::string shown(double value) { return std::isnan(value) ? "nan" : fmt::format("{}", value); }

bool is_spike(const StepValues& values) {
  return values.spike && std::isfinite(values.loss) && std::isfinite(values.grad_norm);
}

bool is_non_finite(const StepValues& values) { return values.skipped && !is_spike(values); }

}  // namespace

void Trainer::exclude_since(std::chrono::steady_clock::time_point start) {
  const std::lock_guard lock(telling_);
  meter_->exclude(std::chrono::steady_clock::now() - start);
}

bool Trainer::is_reported(int64_t step) const {
  return step == first_step_ || step == config_.training.steps || step % config_.metrics.log_freq == 0;
}

// What waits, for the device or for other ranks, does not hold the lock: last words are said by whoever ends the
// process because this thread waits in vain.
void Trainer::settle_next() {
  PendingStep& pending = pending_.front();
  const StepValues values = pending.readback.wait();
  tell_reports();  // what ranks compared behind this step's work is there
  const bool is_first = pending.step == first_step_;
  if (is_first) {
    const std::chrono::seconds timeout(config_.comm.train_timeout_seconds);
    groups_.set_timeout(timeout);
    if (assembly_.peer_memory) assembly_.peer_memory->set_timeout(timeout);
  }
  {
    const std::lock_guard lock(telling_);
    if (all_told_) return pending_.pop_front();  // another thread ends this process
    meter_->add_step(pending.data_wait_seconds, values.skipped);
    wishes_ = {wishes_.stop || values.wishes.stop, wishes_.save || values.wishes.save};
    judge(pending, values);
    unreported_.reset();
    if (is_reported(pending.step)) {
      reports_.push_back(
          report_of(pending, values, meter_->report(pending.step, pending.learning_rate, values, pending.counters)));
      if (is_first) reports_.back().memory = memory_now(reports_.back().report.memory_bytes);
    } else {
      if (status_.is_due()) {
        status_.show(meter_->measure(pending.step, pending.learning_rate, values, pending.counters));
      }
      unreported_ = std::move(pending);
    }
    pending_.pop_front();
  }
  if (reports_.empty()) return;
  if (groups_.world) compare_ranks(reports_.back());
  if (is_first) compare_libraries();
  if (!groups_.world || device_.device.is_cpu()) tell_reports();
}

// A run that is stopped, or whose corpus ends, learns too late which step was its last.
void Trainer::report_last_step() {
  {
    const std::lock_guard lock(telling_);
    if (all_told_ || !unreported_) return;
    const StepValues values = unreported_->readback.wait();
    reports_.push_back(
        report_of(*unreported_, values,
                  meter_->report(unreported_->step, unreported_->learning_rate, values, unreported_->counters)));
    unreported_.reset();
  }
  if (groups_.world) compare_ranks(reports_.back());
  tell_reports();
}

Trainer::PendingReport Trainer::report_of(const PendingStep& pending, const StepValues& values,
                                          StepReport report) const {
  PendingReport made{std::move(report), values, {}, {}, {}};
  made.report.data_queue_ready = pending.batches_ready;
  made.report.data_queue_depth = stream_->depth();
  if (pending.own_share > 0) made.own_loss = values.own_loss / pending.own_share;
  return made;
}

void Trainer::compare_ranks(PendingReport& made) {
  RankComparison ranks(made.report, made.own_loss, *groups_.world, device_.device);
  const std::lock_guard lock(telling_);
  made.ranks.emplace(std::move(ranks));
}

bool Trainer::ends_run(const StepValues& values) const {
  return is_non_finite(values) && config_.training.non_finite == "abort";
}

void Trainer::judge(const PendingStep& pending, const StepValues& values) {
  if (is_non_finite(values)) {
    // In backward the units are judged one by one, so those with finite gradients have been stepped.
    const std::string_view changed = config_.optimizer.early_step_in_backward
                                         ? "the units whose own gradients are not were left unchanged"
                                         : "no weight was changed";
    const std::string what = fmt::format("step {}: loss {} and gradient norm {} are not finite; {}", pending.step,
                                         shown(values.loss), shown(values.grad_norm), changed);
    if (ends_run(values)) {
      throw Error(ExitCode::non_finite, what +
                                            "; try a lower optimizer.lr, a longer lr_scheduler.warmup_steps, or "
                                            "training.non_finite = \"skip\"");
    }
    log_.shared_warning("{}; the step is skipped", what);
  }
  if (!is_spike(values)) return;
  const auto [what, value, deviations] =
      values.spike->norm_deviations > values.spike->loss_deviations
          ? std::tuple("gradient norm", values.grad_norm, values.spike->norm_deviations)
          : std::tuple("loss", values.loss, values.spike->loss_deviations);
  log_.shared_warning(
      "step {}: {} {:.4g} lies {:.1f} standard deviations above the mean of up to the last {} steps; {}", pending.step,
      what, value, deviations, config_.training.spike_window,
      values.skipped ? "the step is skipped" : "the step was made all the same");
  record(SpikeReport{pending.step, values.spike->loss_deviations, values.spike->norm_deviations, values.skipped});
}

void Trainer::settle_all() {
  while (!pending_.empty()) settle_next();
  tell_reports();
}

void Trainer::tell_reports() {
  while (!reports_.empty()) {
    PendingReport& made = reports_.front();
    if (made.ranks) made.ranks->wait();
    const std::lock_guard lock(telling_);
    if (!all_told_) tell(made, made.ranks.has_value());
    reports_.pop_front();
  }
}

void Trainer::tell_what_has_come(std::chrono::milliseconds patience) {
  const auto limit = std::chrono::steady_clock::now() + patience;
  // What ends the run is to be told, and not what cannot be told because of it.
  const auto succeeds = [](const auto& work) {
    try {
      return work();
    } catch (const std::exception&) {
      return false;
    }
  };
  const auto comes = [&](const auto& result) {
    return succeeds([&] {
      while (!result.is_done()) {
        if (std::chrono::steady_clock::now() >= limit) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return true;
    });
  };
  const std::lock_guard lock(telling_);
  if (std::exchange(all_told_, true)) return;
  // Keep the interval open: closing it resets the peak-memory counter that the out-of-memory report needs.
  const auto tell_step = [&](PendingStep& settled) {
    const StepValues values = settled.readback.wait();
    PendingReport made =
        report_of(settled, values, meter_->measure(settled.step, settled.learning_rate, values, settled.counters));
    return tell(made, /*compared=*/false), true;
  };
  // On a CPU the line of a step is told in the step: one that is not has ended in the middle of it.
  const bool on_cpu = device_.device.is_cpu();
  for (size_t i = 0; i < reports_.size() && !on_cpu; ++i) {
    const bool compared = reports_[i].ranks && comes(*reports_[i].ranks);
    succeeds([&] { return tell(reports_[i], compared), true; });
  }
  for (size_t i = 0; i < pending_.size() && !on_cpu; ++i) {
    PendingStep& pending = pending_[i];
    const bool goes_on = comes(pending.readback) && succeeds([&] {
                           const StepValues values = pending.readback.wait();
                           if (ends_run(values)) return false;
                           meter_->add_step(pending.data_wait_seconds, values.skipped);
                           judge(pending, values);
                           unreported_.reset();
                           if (is_reported(pending.step)) return tell_step(pending);
                           unreported_ = std::move(pending);
                           return true;
                         });
    if (!goes_on) break;
  }
  if (unreported_) succeeds([&] { return tell_step(*unreported_); });
}

}  // namespace titan
