// Whether a signal has asked any rank to stop, at moments between steps: several ranks must leave together, since a
// unit's collectives need all of them. Within steps, the request travels with the step's sums (Requests).
#pragma once

#include <optional>
#include <utility>

#include "titan/base/stop_signals.h"
#include "titan/train/device.h"
#include "titan/train/run.h"

namespace titan {

class StopVote {
 public:
  explicit StopVote(const Run& run) : run_(run) {}

  /// All ranks call it at the same moment, and it returns the same on all.
  bool now() {
    start();
    return is_asked(*pending_);
  }

  /// The same. On a GPU it returns the answer of the previous call, so that the host does not wait for the device.
  bool soon() {
    if (run_.device.device.is_cpu()) return now();
    std::optional<HostCopy> before = std::exchange(pending_, std::nullopt);
    start();
    return before && is_asked(*before);
  }

 private:
  void start() {
    const at::Tensor asked = to_device_soon({StopSignals::received() != 0 ? 1.0 : 0.0}, run_.device.device);
    if (run_.communicators.world) run_.communicators.world->all_reduce({asked})->wait();
    pending_.emplace(asked);
  }
  static bool is_asked(HostCopy& copy) { return copy.wait()[0] > 0; }

  const Run& run_;
  std::optional<HostCopy> pending_;
};

}  // namespace titan
