#include "cpu_kernels.h"

#include <algorithm>
#include <cstring>

#include "adam_loop.h"

namespace titan {
namespace {

// Squares are summed block by block: small enough to stay in the first cache as doubles, long enough that what is done
// once a block costs little. Every lane sums kSquaresBlock / kLanes = 2^kLog2PerLane numbers.
constexpr int64_t kSquaresBlock = 2048;
constexpr int64_t kLanes = 32;
constexpr int kLog2PerLane = 6;
static_assert(kSquaresBlock == kLanes << kLog2PerLane);

constexpr uint32_t kInfinity = 0x7f800000;  // as bits; a NaN is above

uint32_t magnitude_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits & 0x7fffffff;
}

/// squares[i] = values[i]², exact: 48 bits. Zeros up to a multiple of kLanes. Returns the magnitude bits of the largest
/// value, which are in the order of the magnitudes.
TITAN_VECTORISED uint32_t square(const float* values, int64_t count, double* squares) {
  uint32_t lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = values[i + lane];
      squares[i + lane] = value * value;
      const uint32_t bits = magnitude_bits(values[i + lane]);
      lanes[lane] = bits > lanes[lane] ? bits : lanes[lane];
    }
  }
  uint32_t largest = *std::max_element(lanes, lanes + kLanes);
  for (; i < count; ++i) {
    squares[i] = static_cast<double>(values[i]) * values[i];
    largest = std::max(largest, magnitude_bits(values[i]));
  }
  for (; i % kLanes != 0; ++i) squares[i] = 0;
  return largest;
}

/// Takes from each number its multiple of the grid, summed by lane into `sums`, and leaves the rest. Returns the size
/// of the largest rest.
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

/// Counts what is not finite in its slot and puts zero in place of its square. Returns the largest square left.
double set_apart(const float* values, int64_t count, double* squares, int64_t* slots) {
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = magnitude_bits(values[i]);
    if (bits >= kInfinity) {
      ++slots[bits == kInfinity ? kExactInfinities : kExactNans];
      squares[i] = 0;
    }
    largest = std::max(largest, squares[i]);
  }
  return largest;
}

}  // namespace

// Two or three grids, 47 bits apart, take all of an ordinary block; the loop runs until nothing is left.
void cpu_add_squares(const float* values, int64_t count, int64_t* slots) {
  alignas(64) double squares[kSquaresBlock];
  alignas(64) double sums[kLanes];
  for (int64_t begin = 0; begin < count; begin += kSquaresBlock) {
    const int64_t length = std::min(kSquaresBlock, count - begin);
    const uint32_t bits = square(values + begin, length, squares);
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    double left =
        bits < kInfinity ? static_cast<double>(value) * value : set_apart(values + begin, length, squares, slots);
    while (left > 0) {
      const ExactGrid grid = exact_grid(left, kLog2PerLane);
      left = peel(squares, length, grid, sums);
      int64_t multiples = 0;
      for (double sum : sums) multiples += static_cast<int64_t>(sum * grid.inverse);
      exact_add(multiples, grid.exponent, [&](int limb, int64_t amount) { slots[limb] += amount; });
    }
  }
}

TITAN_VECTORISED void cpu_adam(const AdamMemory& memory, int64_t begin, int64_t count, const AdamConstants& constants,
                               double clip) {
  float* __restrict weight = memory.weight + begin;
  const float* __restrict gradient = memory.gradient + begin;
  float* __restrict first = memory.first + begin;
  float* __restrict second = memory.second + begin;
  BFloat16Bits* __restrict copy = memory.copy ? memory.copy + begin : nullptr;
  const auto store = [](KeptNumber, int64_t, float value, float& out) { out = value; };
  if (copy) {
    adam_loop(weight, gradient, first, second, count, constants, clip, store,
              [=](int64_t i, float value) { narrow(value, copy[i]); });
  } else {
    adam_loop(weight, gradient, first, second, count, constants, clip, store, [](int64_t, float) {});
  }
}

}  // namespace titan
