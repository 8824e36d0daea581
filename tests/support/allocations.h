// Counts what the CPU allocator hands out, through the reporter that the profiler uses: the allocator itself stays in
// place.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace titan {

class AllocationCounter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    current_ += size;
    peak_ = std::max(peak_, current_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  /// The most bytes that were held at once beyond those held at the start.
  int64_t peak() const { return peak_; }

 private:
  int64_t current_ = 0;
  int64_t peak_ = 0;
};

/// Peak bytes that `work` holds on this thread beyond what was there before it.
template <class Work>
int64_t peak_allocation(const Work& work) {
  auto counter = std::make_shared<AllocationCounter>();
  c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
  work();
  return counter->peak();
}

}  // namespace titan
