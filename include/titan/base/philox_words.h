// The arithmetic of Philox4x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) on plain words:
// for loops that become vectors and for kernels on a GPU. Everything else takes base/philox.h; tests hold both against
// the published numbers.
#pragma once

#include <cstdint>

#include "titan/base/host_device.h"

namespace titan {

TITAN_HOST_DEVICE inline uint64_t philox_product(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  uint64_t product;  // by one instruction: to a product of 64-bit numbers nvcc adds zeros
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
#else
  return uint64_t{a} * b;
#endif
}

/// The counter goes in, the random words come out. Ten rounds are the usual number; seven are the fewest of which the
/// paper reports no failure in TestU01's BigCrush.
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
