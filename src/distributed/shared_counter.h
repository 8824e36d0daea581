// A number in shared memory that one process raises and others wait for. Waiting spins for a moment, then sleeps in the
// kernel until the number changes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace titan {

/// Lives in zeroed shared memory, on a cache line of its own. Counts wrap; the difference of two that are compared
/// stays far below 2^31.
class alignas(64) SharedCounter {
 public:
  /// Adds one. What this process wrote before is visible to whoever sees the new count.
  void raise();
  bool reached(uint32_t count) const { return static_cast<int32_t>(value_.load() - count) >= 0; }
  /// False when the count was not reached within `timeout`.
  bool wait_for(uint32_t count, std::chrono::milliseconds timeout);

 private:
  std::atomic<uint32_t> value_;
  std::atomic<uint32_t> sleepers_;
};

}  // namespace titan
