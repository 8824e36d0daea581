#include "titan/data/permutation.h"

#include <algorithm>
#include <bit>

#include "titan/base/error.h"
#include "titan/base/philox.h"

namespace titan {

Permutation::Permutation(uint64_t seed, uint64_t epoch, uint64_t size) : size_(size) {
  TITAN_CHECK(size > 0 && size <= uint64_t{1} << 62, size);
  half_ = std::max(1, (static_cast<int>(std::bit_width(size - 1)) + 1) / 2);
  const uint64_t key = seed ^ name_key("order of documents");
  for (size_t round = 0; round < keys_.size(); ++round) {
    const PhiloxBlock block = philox_at(key, epoch, round);
    keys_[round] = uint64_t{block[0]} << 32 | block[1];
  }
}

uint64_t Permutation::mix(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_) - 1;
  uint64_t left = value >> half_, right = value & mask;
  for (const uint64_t key : keys_) {
    uint64_t hash = (right + key) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ hash >> 32) * 0xD6E8FEB86659FD93u;
    const uint64_t next = (left ^ hash >> 24) & mask;
    left = right;
    right = next;
  }
  return left << half_ | right;
}

}  // namespace titan
