// Stochastic rounding of fp32 to bf16: up with the probability of the part that is cut off, so that the expectation is
// the number itself and small updates are not lost (Gupta et al., "Deep learning with limited numerical precision",
// 2015). The chance is a pure function of a key and of the element's index in the whole tensor: every way to cut the
// tensor over ranks, blocks and threads rounds to the same bits. For host and device alike; no tensors.
#pragma once

#include <cstdint>

#include "titan/base/philox.h"

namespace titan {

/// What makes the chances of one tensor in one step differ from all others'.
struct RoundingKey {
  uint64_t key = 0;     // of seed and step
  uint64_t stream = 0;  // of the parameter's name
};

/// Where elements of memory are in the whole tensor, row-major: element i is number
/// first + (i / run) · stride + i % run of it.
struct RoundingPlace {
  int64_t first = 0;
  int64_t run = 1;     // elements of memory that follow each other in the tensor too
  int64_t stride = 1;  // from one run to the next

  TITAN_HOST_DEVICE int64_t index(int64_t element) const {
    if (element < run) return first + element;  // without a division where all of the memory is one run
    return first + (element / run) * stride + element % run;
  }
};

/// The numbers that an optimizer keeps of an element.
enum class KeptNumber { weight, first_moment, second_moment };

/// 16 bits for each of them: upper halves where there are any, which a GPU shifts and adds in one instruction.
struct RoundingBits {
  uint32_t weight_and_second;  // weight: upper half, second moment: lower half
  uint32_t first;              // upper half

  TITAN_HOST_DEVICE uint32_t of(KeptNumber number) const {
    if (number == KeptNumber::first_moment) return first >> 16;
    return number == KeptNumber::weight ? weight_and_second >> 16 : weight_and_second & 0xFFFF;
  }
};

/// Rounds of Philox for chances: enough for numbers of which each decides one last place.
constexpr int kRoundingRounds = 7;

/// Elements 2n and 2n + 1 of a tensor, which share block n of the key's stream.
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

/// From the bits of an fp32 number that is not a NaN: a word whose upper half is a bf16 number; `chance` below 2^16. A
/// number that bf16 has stays itself, an infinity stays what it is.
TITAN_HOST_DEVICE inline uint32_t round_up_stochastically(uint32_t bits, uint32_t chance) { return bits + chance; }

/// That bf16 number of any bits; a NaN stays one.
TITAN_HOST_DEVICE inline uint32_t round_stochastically(uint32_t bits, uint32_t chance) {
  const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  return is_nan ? 0x7FC0 : round_up_stochastically(bits, chance) >> 16;
}

}  // namespace titan
