// A random order of 0 … size−1 that needs no memory: place `index` of epoch `epoch` is a pure function of (seed, epoch,
// index). A Feistel network over the next even number of bits, walked along its cycles until it lands inside (Black and
// Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).
#pragma once

#include <array>
#include <cstdint>

namespace titan {

class Permutation {
 public:
  Permutation(uint64_t seed, uint64_t epoch, uint64_t size);

  /// One to one on [0, size).
  uint64_t operator()(uint64_t index) const {
    do index = mix(index);
    while (index >= size_);
    return index;
  }

 private:
  static constexpr int kRounds = 6;

  uint64_t mix(uint64_t value) const;

  uint64_t size_;
  int half_ = 1;  // bits of each half
  std::array<uint64_t, kRounds> keys_{};
};

}  // namespace titan
