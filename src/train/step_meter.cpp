#include "titan/train/step_meter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "titan/base/process.h"
#include "titan/base/text.h"
#include "titan/estimate/simulate.h"

namespace titan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor extremes_of(const StepReport& own, std::optional<double> own_loss, Communicator& world,
                       const at::Device& device) {
  double most = own_loss.value_or(-kInfinity);
  if (std::isnan(most)) most = kInfinity;  // a comparison would lose a NaN
  const double seconds = own.step_seconds;
  const auto bytes = static_cast<double>(own.memory_bytes);
  // One all-reduce: min(x) = −max(−x).
  at::Tensor extremes = to_device_soon({-seconds, seconds, -bytes, bytes, most}, device);
  world.all_reduce({extremes}, Reduction::max)->wait();
  return extremes;
}

}  // namespace

RankComparison::RankComparison(const StepReport& own, std::optional<double> own_loss, Communicator& world,
                               const at::Device& device)
    : extremes_(extremes_of(own, own_loss, world, device)) {}

void RankComparison::add_to(StepReport& report) const {
  const std::span<const double> value = extremes_.values();
  report.ranks =
      StepReport::Ranks{-value[0], value[1], static_cast<int64_t>(-value[2]), static_cast<int64_t>(value[3])};
  if (value[4] > -kInfinity) report.max_loss = value[4];
}

StepMeter::StepMeter(const DeviceInfo& device, int64_t total_steps, int64_t tokens_per_step, int64_t flops_per_token,
                     int64_t ranks, Clock::time_point start)
    : device_(device),
      total_steps_(total_steps),
      tokens_per_step_(tokens_per_step),
      flops_per_token_(flops_per_token),
      ranks_(ranks),
      peak_flops_(device.device.is_cpu() ? std::nullopt : peak_flops_of(device.name)),
      interval_start_(start) {}

void StepMeter::add_step(double data_wait_seconds, bool skipped) {
  ++interval_steps_;
  ++steps_seen_;
  interval_wait_ += data_wait_seconds;
  if (skipped) ++skipped_steps_;
}

StepReport StepMeter::measure(int64_t step, double learning_rate, const StepValues& values,
                              const DataCounters& counters, Clock::time_point now) const {
  const double seconds = std::chrono::duration<double>(now - interval_start_).count();
  const double steps = static_cast<double>(std::max<int64_t>(1, interval_steps_));
  StepReport report;
  report.step = step;
  report.total_steps = total_steps_;
  report.loss = report.max_loss = values.loss;
  report.grad_norm = values.grad_norm;
  report.learning_rate = learning_rate;
  report.step_seconds = seconds / steps;
  report.data_wait_seconds = interval_wait_ / steps;
  report.tokens_per_second =
      static_cast<double>(tokens_per_step_) / static_cast<double>(ranks_) * steps / std::max(seconds, 1e-9);
  report.flops_per_token = flops_per_token_;
  report.peak_flops = peak_flops_;
  const MemoryUse memory = memory_use(device_.device);
  report.memory_bytes = memory.reserved_peak;
  report.active_bytes = memory.active_peak;
  report.allocation_retries = memory.retries;
  report.out_of_memory_count = memory.out_of_memory;
  report.memory_total = device_.memory_bytes;
  report.host_peak_bytes = peak_resident_bytes();
  report.tokens_seen = tokens_before_ + steps_seen_ * tokens_per_step_;
  report.eta_seconds = report.step_seconds * static_cast<double>(total_steps_ - step);
  report.data_documents = counters.documents;
  report.data_tokens = counters.tokens;
  report.bad_records = counters.bad_records;
  report.long_conversations = counters.long_conversations;
  report.data_loops = counters.re_loops;
  report.skipped_steps = skipped_steps_;
  auto next = values.statistics.begin();
  for (size_t i = 0; i < statistics_.size(); ++i) {
    const StatisticDescription& statistic = statistics_[i];
    Statistic reported{statistic.name, {next, next + statistic.numel}, statistic.on_console};
    next += statistic.numel;
    if (i >= first_update_statistic_ && reported.values[0] == kNoStatistic) continue;
    for (double& value : reported.values) {
      value /= statistic.divisor;
      if (statistic.is_root) value = std::sqrt(value);
    }
    report.statistics.push_back(std::move(reported));
  }
  for (const UpdateDescription& update : updates_) {
    if (update.rate_name.empty()) continue;
    report.statistics.push_back({update.rate_name, {learning_rate * update.rate_share}});
  }
  return report;
}

StepReport StepMeter::report(int64_t step, double learning_rate, const StepValues& values, const DataCounters& counters,
                             Clock::time_point now) {
  StepReport report = measure(step, learning_rate, values, counters, now);
  reset_peak_memory(device_.device);
  interval_start_ = now;
  interval_steps_ = 0;
  interval_wait_ = 0;
  return report;
}

}  // namespace titan
