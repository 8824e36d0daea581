// Stochastic rounding of fp32 to bf16: rounds up with a probability equal to the fraction cut off, so the expectation
// is exact and small updates are not lost (Gupta et al., "Deep learning with limited numerical precision", 2015). The
// random bits are a pure function of a key and the element's index in the whole tensor: any sharding and threading
// gives the same bits. For host and device; no tensors.
#pragma once

#include <cstdint>

#include "titan/base/philox.h"

namespace titan {

/// Identifies the random stream of one tensor in one step.
struct RoundingKey {
  uint64_t key = 0;     // derived from seed and step
  uint64_t stream = 0;  // derived from the parameter's name
};

/// Maps elements in memory to the whole tensor, row-major: element i is element first + (i / run) · stride + i % run.
struct RoundingPlace {
  int64_t first = 0;
  int64_t run = 1;     // elements of memory that are consecutive in the tensor too
  int64_t stride = 1;  // distance between the starts of two runs

  TITAN_HOST_DEVICE int64_t index(int64_t element) const {
    if (element < run) return first + element;  // avoids the division if all of the memory is one run
    return first + (element / run) * stride + element % run;
  }
};

/// The values that an optimizer stores per element.
enum class KeptNumber { weight, first_moment, second_moment };

/// 16 random bits for each value, in upper halves where possible: a GPU shifts and adds these in one instruction.
struct RoundingBits {
  uint32_t weight_and_second;  // weight: upper half, second moment: lower half
  uint32_t first;              // upper half

  TITAN_HOST_DEVICE uint32_t of(KeptNumber number) const {
    if (number == KeptNumber::first_moment) return first >> 16;
    return number == KeptNumber::weight ? weight_and_second >> 16 : weight_and_second & 0xFFFF;
  }
};

/// Philox rounds: enough here, because each random number only decides one last place.
constexpr int kRoundingRounds = 7;

/// Random bits of elements 2n and 2n + 1 of a tensor, which share block n of the key's stream.
struct RoundingPairBits {
  RoundingBits even, odd;
};
TITAN_HOST_DEVICE inline RoundingPairBits rounding_pair_bits(const RoundingKey& key, int64_t index) {
  const auto pair = static_cast<uint64_t>(index) >> 1;
  auto word0 = static_cast<uint32_t>(pair);
  auto word1 = static_cast<uint32_t>(pair >> 32);
  auto word2 = static_cast<uint32_t>(key.stream);
  auto word3 = static_cast<uint32_t>(key.stream >> 32);
  philox_words<kRoundingRounds>(word0, word1, word2, word3, key.key);
  return {{word0, word1}, {word2, word3}};
}

TITAN_HOST_DEVICE inline RoundingBits rounding_bits(const RoundingKey& key, int64_t index) {
  const RoundingPairBits pair = rounding_pair_bits(key, index);
  return index % 2 == 0 ? pair.even : pair.odd;
}

/// Input: the bits of an fp32 number that is not NaN, and `random` below 2^16. The upper half of the result is the bf16
/// number. Values that bf16 represents, and infinities, are unchanged.
TITAN_HOST_DEVICE inline uint32_t round_up_stochastically(uint32_t bits, uint32_t random) { return bits + random; }

/// The bf16 number for any bits; NaN stays NaN.
TITAN_HOST_DEVICE inline uint32_t round_stochastically(uint32_t bits, uint32_t random) {
  const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  return is_nan ? 0x7FC0 : round_up_stochastically(bits, random) >> 16;
}

}  // namespace titan
