// Sums of squares by the slowest honest means: every square written into one big binary number, which the C library
// then rounds. Knows nothing of limbs that overlap, grids or lanes.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace titan {

/// Counts multiples of 2^-298, one hexadecimal digit each.
class BigSum {
 public:
  void add_square(float value) {
    if (value == 0) return;
    int exponent;
    const double fraction = std::frexp(std::fabs(value), &exponent);     // value = fraction · 2^exponent
    const auto whole = static_cast<uint64_t>(std::ldexp(fraction, 24));  // an integer below 2^24
    uint64_t square = whole * whole;                                     // value² = square · 2^(2·exponent − 48)
    int position = 2 * exponent - 48 + 298;
    for (; position < 0; ++position) square >>= 1;  // subnormals: the bits shifted out are zeros
    size_t digit = static_cast<size_t>(position) / 4;
    unsigned __int128 rest = static_cast<unsigned __int128>(square) << (position % 4);
    for (; rest != 0; ++digit) {
      rest += digits_[digit];
      digits_[digit] = static_cast<uint8_t>(rest & 15);
      rest >>= 4;
    }
  }

  /// Bits 32·i and up of the count.
  int64_t word(size_t i) const {
    int64_t word = 0;
    for (size_t digit = 8 * i + 8; digit-- > 8 * i;) word = word << 4 | (digit < digits_.size() ? digits_[digit] : 0);
    return word;
  }

  double rounded() const {
    std::string text = "0x";
    for (size_t i = digits_.size(); i-- > 0;) text += "0123456789abcdef"[digits_[i]];
    return std::strtod((text + "p-298").c_str(), nullptr);
  }

 private:
  std::vector<uint8_t> digits_ = std::vector<uint8_t>(160);
};

inline double exact_reference(std::span<const float> values) {
  BigSum sum;
  for (float value : values) sum.add_square(value);
  return sum.rounded();
}

/// Numbers of both signs whose exponents spread evenly over [lowest, highest] (−149 … 127), some of them zero.
inline std::vector<float> wide_numbers(size_t count, uint64_t seed, int lowest = -149, int highest = 127) {
  std::mt19937_64 random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    const int exponent = lowest + static_cast<int>(random() % static_cast<uint64_t>(highest - lowest + 1));
    const double fraction = 1 + static_cast<double>(random() % (1 << 23)) / (1 << 23);
    value = random() % 17 == 0 ? 0.0f : static_cast<float>(std::ldexp(random() % 2 ? fraction : -fraction, exponent));
  }
  return values;
}

}  // namespace titan
