// Counts what the CPU allocator hands out on this thread. Tensors and the scratch memory of oneDNN come from the same
// allocator; how much scratch a product takes depends on the processor, so it is counted apart. LibTorch gives oneDNN
// raw_allocate() and raw_deallocate(), which tensors do not use: a block that the raw deleter frees was scratch.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

namespace titan {

/// The most bytes that were held at once beyond those held at the start.
struct PeakBytes {
  int64_t tensors = 0;
  int64_t scratch = 0;  // a block that is still held at the end counts as a tensor
};

/// Gets every allocation and release from the reporter that the profiler uses.
class AllocationCounter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* place, int64_t bytes, size_t, size_t, c10::Device) override {
    if (bytes > 0 || !live_.contains(place)) live_[place] = &blocks_.emplace_back();
    changes_.push_back({live_.at(place), bytes});
  }
  bool memoryProfilingEnabled() const override { return true; }
  void freed_as_scratch(void* place) {
    if (live_.contains(place)) live_.at(place)->is_scratch = true;
  }
  PeakBytes peaks() const {
    PeakBytes held, most;
    for (const Change& change : changes_) {
      (change.block->is_scratch ? held.scratch : held.tensors) += change.bytes;
      most = {std::max(most.tensors, held.tensors), std::max(most.scratch, held.scratch)};
    }
    return most;
  }

 private:
  struct Block {
    bool is_scratch = false;
  };
  struct Change {
    const Block* block;
    int64_t bytes;  // negative: freed
  };
  std::deque<Block> blocks_;
  std::unordered_map<void*, Block*> live_;  // the newest block at each place
  std::vector<Change> changes_;
};

/// The process's allocator for the life of one of these, with a raw deleter that reports to `counter`.
class ScratchWatch {
 public:
  explicit ScratchWatch(AllocationCounter& counter) {
    current() = &counter;
    inner() = c10::GetCPUAllocator();
    static WatchingAllocator watching;  // tensors keep a pointer to the allocator that made them
    c10::SetCPUAllocator(&watching, kPriority);
  }
  ~ScratchWatch() {
    c10::SetCPUAllocator(inner(), kPriority);
    current() = nullptr;
  }
  ScratchWatch(const ScratchWatch&) = delete;
  ScratchWatch& operator=(const ScratchWatch&) = delete;

 private:
  static constexpr uint8_t kPriority = 255;  // an allocator of a lower priority than the last one is ignored

  class WatchingAllocator : public c10::Allocator {
   public:
    c10::DataPtr allocate(size_t bytes) override { return inner()->allocate(bytes); }
    c10::DeleterFnPtr raw_deleter() const override {
      return [](void* place) {
        if (current()) current()->freed_as_scratch(place);
        inner()->raw_deleter()(place);
      };
    }
    void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
  };

  static AllocationCounter*& current() {
    thread_local AllocationCounter* counter = nullptr;
    return counter;
  }
  static c10::Allocator*& inner() {
    static c10::Allocator* allocator = nullptr;
    return allocator;
  }
};

/// What `work` holds on this thread beyond what was there before it.
template <class Work>
PeakBytes peak_allocation(const Work& work) {
  auto counter = std::make_shared<AllocationCounter>();
  const ScratchWatch watch(*counter);
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, counter);
  work();
  return counter->peaks();
}

/// The most scratch memory that a product [rows, inner] · [inner, columns] on one thread has a use for: both operands
/// packed and the result summed in fp32, whole, their sides rounded up to oneDNN's largest block, and small tables.
inline int64_t product_scratch(int64_t rows, int64_t inner, int64_t columns) {
  const auto padded = [](int64_t side) { return (side + 63) / 64 * 64; };
  const int64_t r = padded(rows), i = padded(inner), c = padded(columns);
  return 4 * (r * i + i * c + r * c) + (64 << 10);
}

}  // namespace titan
