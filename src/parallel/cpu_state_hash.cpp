#include <algorithm>
#include <bit>

#include "titan/parallel/state_hash.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace titan {

int64_t hash_of_bytes(const void* data, int64_t bytes) {
  return static_cast<int64_t>(XXH3_64bits(data, static_cast<size_t>(bytes)));
}

// The largest bits without sign: those of infinity are below those of every NaN and above those of every number.

bool are_finite(const float* values, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7fffffffU);
  return largest < 0x7f800000U;
}

bool are_finite(const uint16_t* bfloat16_bits, int64_t count) {
  uint16_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, static_cast<uint16_t>(bfloat16_bits[i] & 0x7fffU));
  }
  return largest < 0x7f80U;
}

}  // namespace titan
