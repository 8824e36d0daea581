// Random numbers for tests, the same on every machine.
#pragma once

#include <cstdint>

#include "titan/base/philox.h"

namespace titan {

/// The numbers of one stream of Philox, one after the other.
class PhiloxSequence {
 public:
  explicit PhiloxSequence(uint64_t key, uint64_t stream = 0) : key_(key), stream_(stream) {}

  uint32_t next() {
    if (used_ == block_.size()) {
      block_ = philox_at(key_, stream_, index_++);
      used_ = 0;
    }
    return block_[used_++];
  }
  /// Uniform in [0, bound); bound > 0. Lemire's multiply-shift without rejection: bias below 2^-32 · bound.
  uint32_t below(uint32_t bound) { return static_cast<uint32_t>((uint64_t{next()} * bound) >> 32); }
  double uniform() { return unit_interval(next()); }

 private:
  uint64_t key_;
  uint64_t stream_;
  uint64_t index_ = 0;
  unsigned used_ = 4;
  PhiloxBlock block_{};
};

}  // namespace titan
