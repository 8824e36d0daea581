// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// A value is a pure function of (key, counter): no state, no order, bitwise equal in every layout and thread.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#ifdef __CUDACC__
#define TITAN_HOST_DEVICE __host__ __device__
#else
#define TITAN_HOST_DEVICE
#endif

namespace titan {

using PhiloxBlock = std::array<uint32_t, 4>;

/// Ten rounds on a 128-bit counter with a 64-bit key.
constexpr PhiloxBlock philox(PhiloxBlock counter, uint64_t key) {
  auto key_low = static_cast<uint32_t>(key);
  auto key_high = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key_low, static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key_high, static_cast<uint32_t>(product0)};
    key_low += 0x9E3779B9;
    key_high += 0xBB67AE85;
  }
  return counter;
}

/// Block `index` of the stream identified by `key` and `stream`.
constexpr PhiloxBlock philox_at(uint64_t key, uint64_t stream, uint64_t index) {
  return philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(stream),
                 static_cast<uint32_t>(stream >> 32)},
                key);
}

/// A number in the open interval (0, 1), so that its logarithm is finite.
constexpr double unit_interval(uint32_t bits) { return (static_cast<double>(bits) + 0.5) * 0x1p-32; }

/// A stable 64-bit hash of a name (XXH3): gives each parameter its own random stream.
uint64_t name_key(std::string_view name);

// Philox4x32 arithmetic on separate 32-bit words, for vectorised loops and GPU kernels. All other code uses philox()
// above; tests check both against the published numbers.

TITAN_HOST_DEVICE inline uint64_t philox_product(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  uint64_t product;  // mul.wide: for a 64-bit product nvcc emits additions of zero
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
#else
  return uint64_t{a} * b;
#endif
}

/// Replaces the counter words by random words. Ten rounds are the default; seven are the fewest that pass TestU01's
/// BigCrush according to the paper.
template <int kRounds = 10>
TITAN_HOST_DEVICE inline void philox_words(uint32_t& word0, uint32_t& word1, uint32_t& word2, uint32_t& word3,
                                           uint64_t key) {
  auto key_low = static_cast<uint32_t>(key);
  auto key_high = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = philox_product(0xD2511F53, word0);
    const uint64_t product1 = philox_product(0xCD9E8D57, word2);
    word0 = static_cast<uint32_t>(product1 >> 32) ^ word1 ^ key_low;
    word1 = static_cast<uint32_t>(product1);
    word2 = static_cast<uint32_t>(product0 >> 32) ^ word3 ^ key_high;
    word3 = static_cast<uint32_t>(product0);
    key_low += 0x9E3779B9;
    key_high += 0xBB67AE85;
  }
}

}  // namespace titan
