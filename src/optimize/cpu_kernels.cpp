#include "cpu_kernels.h"

#include <algorithm>
#include <bit>

#include "titan/optimize/adam.h"

/// Placed between the parameters and the body of a lambda in vectorised functions.
#define TITAN_INLINE_LAMBDA __attribute__((always_inline))

namespace titan {
namespace {

// Squares are summed per block: small enough for L1 as doubles, large enough to amortise the per-block work. Every lane
// sums kSquaresBlock / kLanes = 2^kLog2PerLane values.
constexpr int64_t kSquaresBlock = 2048;
constexpr int64_t kLanes = 32;
constexpr int kLog2PerLane = 6;
static_assert(kSquaresBlock == kLanes << kLog2PerLane);

constexpr uint32_t kInfinity = 0x7f800000;  // as bits; NaNs are above

TITAN_INLINE uint32_t amax_bits(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffff; }

/// squares[i] = values[i]², exact (48 bits), zero-padded to a multiple of kLanes. Returns the bits of the largest
/// |value|; bits compare in the order of absolute values.
template <class Value>
TITAN_INLINE uint32_t square_any(const Value* values, int64_t count, double* squares) {
  uint32_t lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = widen(values[i + lane]);
      squares[i + lane] = value * value;
      const uint32_t bits = amax_bits(widen(values[i + lane]));
      lanes[lane] = bits > lanes[lane] ? bits : lanes[lane];
    }
  }
  uint32_t largest = *std::max_element(lanes, lanes + kLanes);
  for (; i < count; ++i) {
    const double value = widen(values[i]);
    squares[i] = value * value;
    largest = std::max(largest, amax_bits(widen(values[i])));
  }
  for (; i % kLanes != 0; ++i) squares[i] = 0;
  return largest;
}

TITAN_VECTORISED uint32_t square(const float* values, int64_t count, double* squares) {
  return square_any(values, count, squares);
}
TITAN_VECTORISED uint32_t square(const BFloat16Bits* values, int64_t count, double* squares) {
  return square_any(values, count, squares);
}

/// Subtracts from each number its multiple of the grid, accumulated per lane in `sums`. Returns the largest
/// |remainder|.
TITAN_VECTORISED double peel(double* numbers, int64_t count, const ExactGrid& grid, double* sums) {
  const double shift = grid.shift;
  double lanes[kLanes] = {};
  double largest[kLanes] = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double number = numbers[i + lane];
      const double multiple = (number + shift) - shift;
      const double rest = number - multiple;
      lanes[lane] += multiple;
      numbers[i + lane] = rest;
      const double size = __builtin_fabs(rest);
      largest[lane] = size > largest[lane] ? size : largest[lane];
    }
  }
  std::copy(lanes, lanes + kLanes, sums);
  return *std::max_element(largest, largest + kLanes);
}

/// Counts non-finite values in their slots and replaces their squares by zero. Returns the largest remaining square.
template <class Value>
double set_apart(const Value* values, int64_t count, double* squares, int64_t* slots) {
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = amax_bits(widen(values[i]));
    if (bits >= kInfinity) {
      ++slots[bits == kInfinity ? kExactInfinities : kExactNans];
      squares[i] = 0;
    }
    largest = std::max(largest, squares[i]);
  }
  return largest;
}

// Two or three grids, 47 bits apart, cover an ordinary block; the loop runs until no remainder is left.
template <class Value>
void add_squares(const Value* values, int64_t count, int64_t* slots) {
  alignas(64) double squares[kSquaresBlock];
  alignas(64) double sums[kLanes];
  for (int64_t begin = 0; begin < count; begin += kSquaresBlock) {
    const int64_t length = std::min(kSquaresBlock, count - begin);
    const uint32_t bits = square(values + begin, length, squares);
    const double value = std::bit_cast<float>(bits);
    double left = bits < kInfinity ? value * value : set_apart(values + begin, length, squares, slots);
    while (left > 0) {
      const ExactGrid grid = exact_grid(left, kLog2PerLane);
      left = peel(squares, length, grid, sums);
      int64_t multiples = 0;
      for (double sum : sums) multiples += static_cast<int64_t>(sum * grid.inverse);
      exact_add(multiples, grid.exponent, [&](int limb, int64_t amount) { slots[limb] += amount; });
    }
  }
}

template <class Gradient>
TITAN_INLINE void adam(const AdamMemory& memory, int64_t begin, int64_t count, const AdamConstants& constants,
                       double clip) {
  float* __restrict weight = memory.weight + begin;
  const Gradient* __restrict gradient = static_cast<const Gradient*>(memory.gradient) + begin;
  float* __restrict first = memory.first + begin;
  float* __restrict second = memory.second + begin;
  BFloat16Bits* __restrict copy = memory.copy ? memory.copy + begin : nullptr;
  const auto store = [](KeptNumber, int64_t, float value, float& out) TITAN_INLINE_LAMBDA { out = value; };
  if (copy) {
    adam_loop(weight, gradient, first, second, count, constants, clip, store,
              [=](int64_t i, float value) TITAN_INLINE_LAMBDA { narrow(value, copy[i]); });
  } else {
    adam_loop(weight, gradient, first, second, count, constants, clip, store,
              [](int64_t, float) TITAN_INLINE_LAMBDA {});
  }
}

}  // namespace

void cpu_add_squares(const float* values, int64_t count, int64_t* slots) { add_squares(values, count, slots); }
void cpu_add_squares(const BFloat16Bits* values, int64_t count, int64_t* slots) { add_squares(values, count, slots); }

TITAN_VECTORISED void cpu_adam(const AdamMemory& memory, int64_t begin, int64_t count, const AdamConstants& constants,
                               double clip) {
  if (memory.bf16_gradient) {
    adam<BFloat16Bits>(memory, begin, count, constants, clip);
  } else {
    adam<float>(memory, begin, count, constants, clip);
  }
}

// The Adam step and the stochastic rounding of bf16 states. Random bits are generated per block into arrays that the
// step's loop reads: both loops vectorise, and the block stays in L1.

namespace {

// 8 KiB of random bits, which leaves most of L1 to weights, gradients and moments.
constexpr int64_t kBlock = 1024;

/// The random bits of up to kBlock consecutive elements of the tensor, as rounding_bits gives them.
struct RandomBlock {
  // One pair more than kBlock / 2: a block may start and end in the middle of a pair.
  alignas(64) uint32_t weight_and_second[kBlock + 2];
  alignas(64) uint32_t first[kBlock + 2];
  int64_t skipped;  // 1 if the block starts with an odd element: the first of the first pair is unused

  TITAN_INLINE uint32_t of(KeptNumber number, int64_t i) const {
    return RoundingBits{weight_and_second[i + skipped], first[i + skipped]}.of(number);
  }
};

TITAN_INLINE void make_random_bits(const RoundingKey& key, int64_t index, int64_t count, RandomBlock& random_bits) {
  const uint64_t first_pair = static_cast<uint64_t>(index) >> 1;
  const auto low = static_cast<uint32_t>(first_pair);
  const auto high = static_cast<uint32_t>(first_pair >> 32);
  const auto stream_low = static_cast<uint32_t>(key.stream);
  const auto stream_high = static_cast<uint32_t>(key.stream >> 32);
  const uint64_t words_key = key.key;
  random_bits.skipped = index & 1;
  const auto pairs = static_cast<uint32_t>((random_bits.skipped + count + 1) / 2);
  for (uint32_t pair = 0; pair < pairs; ++pair) {
    uint32_t word0 = low + pair;
    uint32_t word1 = high + (word0 < low ? 1 : 0);
    uint32_t word2 = stream_low;
    uint32_t word3 = stream_high;
    philox_words<kRoundingRounds>(word0, word1, word2, word3, words_key);
    random_bits.weight_and_second[2 * pair] = word0;
    random_bits.weight_and_second[2 * pair + 1] = word2;
    random_bits.first[2 * pair] = word1;
    random_bits.first[2 * pair + 1] = word3;
  }
}

TITAN_INLINE void round_to(float value, uint32_t random, BFloat16Bits& out) {
  out.bits = static_cast<uint16_t>(round_stochastically(std::bit_cast<uint32_t>(value), random));
}
TITAN_INLINE void round_to(float value, uint32_t, float& out) { out = value; }

/// Calls `visit(element, index, length)` for pieces of [begin, begin + count), each of at most kBlock elements that are
/// also consecutive in the tensor.
template <class Visit>
TITAN_INLINE void in_blocks(const RoundingPlace& place, int64_t begin, int64_t count, const Visit& visit) {
  for (int64_t element = begin; element < begin + count;) {
    const int64_t to_end_of_run = place.run - element % place.run;
    const int64_t length = std::min({kBlock, to_end_of_run, begin + count - element});
    visit(element, place.index(element), length);
    element += length;
  }
}

template <class Weight, class Moment, class Gradient>
TITAN_INLINE void bf16_adam(const Bf16AdamMemory& memory, int64_t begin, int64_t count, const Rounding& rounding,
                            const AdamConstants& constants, double clip) {
  auto* weight = static_cast<Weight*>(memory.weight);
  const auto* gradient = static_cast<const Gradient*>(memory.gradient);
  auto* first = static_cast<Moment*>(memory.first);
  auto* second = static_cast<Moment*>(memory.second);
  BFloat16Bits* copy = memory.copy;
  RandomBlock random_bits;
  in_blocks(rounding.place, begin, count, [&](int64_t at, int64_t index, int64_t length) TITAN_INLINE_LAMBDA {
    make_random_bits(rounding.key, index, length, random_bits);
    const auto store = [&](KeptNumber number, int64_t i, float value, auto& out)
                           TITAN_INLINE_LAMBDA { round_to(value, random_bits.of(number, i), out); };
    if (copy) {
      adam_loop(weight + at, gradient + at, first + at, second + at, length, constants, clip, store,
                [=](int64_t i, auto value) TITAN_INLINE_LAMBDA { narrow(widen(value), copy[at + i]); });
    } else {
      adam_loop(weight + at, gradient + at, first + at, second + at, length, constants, clip, store,
                [](int64_t, auto) TITAN_INLINE_LAMBDA {});
    }
  });
}

template <class Gradient>
TITAN_INLINE void bf16_adam_of(const Bf16AdamMemory& memory, int64_t begin, int64_t count, const Rounding& rounding,
                               const AdamConstants& constants, double clip) {
  if (memory.bf16_weight && memory.bf16_moments) {
    bf16_adam<BFloat16Bits, BFloat16Bits, Gradient>(memory, begin, count, rounding, constants, clip);
  } else if (memory.bf16_weight) {
    bf16_adam<BFloat16Bits, float, Gradient>(memory, begin, count, rounding, constants, clip);
  } else {
    bf16_adam<float, BFloat16Bits, Gradient>(memory, begin, count, rounding, constants, clip);
  }
}

}  // namespace

TITAN_VECTORISED void cpu_bf16_adam(const Bf16AdamMemory& memory, int64_t begin, int64_t count,
                                    const Rounding& rounding, const AdamConstants& constants, double clip) {
  if (memory.bf16_gradient) {
    bf16_adam_of<BFloat16Bits>(memory, begin, count, rounding, constants, clip);
  } else {
    bf16_adam_of<float>(memory, begin, count, rounding, constants, clip);
  }
}

TITAN_VECTORISED void cpu_round(const float* values, BFloat16Bits* target, int64_t begin, int64_t count,
                                const Rounding& rounding, KeptNumber number) {
  RandomBlock random_bits;
  in_blocks(rounding.place, begin, count, [&](int64_t at, int64_t index, int64_t length) TITAN_INLINE_LAMBDA {
    make_random_bits(rounding.key, index, length, random_bits);
    for (int64_t i = 0; i < length; ++i) round_to(values[at + i], random_bits.of(number, i), target[at + i]);
  });
}

}  // namespace titan
