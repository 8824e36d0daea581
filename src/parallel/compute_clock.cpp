#include "titan/parallel/compute_clock.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace titan {

ComputeClock::ComputeClock(const c10::Device& device, std::shared_ptr<const CollectiveTime> collectives)
    : device_(device), collectives_(std::move(collectives)) {}

void ComputeClock::begin() {
  if (device_.is_cpu()) {
    waited_before_ = waited();
    begun_ = compute_time();
    return;
  }
  // With this flag an event keeps its time.
  constexpr auto kTimed = c10::EventFlag::BACKEND_DEFAULT;
  parts_.push_back({c10::Event(device_.type(), kTimed), c10::Event(device_.type(), kTimed)});
  parts_.back().begin.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

void ComputeClock::end() {
  if (device_.is_cpu()) {
    seconds_ += compute_time() - begun_ - (waited() - waited_before_);
    return;
  }
  parts_.back().end.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

double ComputeClock::take() {
  size_t finished = 0;
  while (finished < parts_.size() && parts_[finished].end.query()) {
    seconds_ += 1e-3 * parts_[finished].begin.elapsedTime(parts_[finished].end);
    ++finished;
  }
  parts_.erase(parts_.begin(), parts_.begin() + static_cast<std::ptrdiff_t>(finished));
  return std::exchange(seconds_, 0.0);
}

}  // namespace titan
