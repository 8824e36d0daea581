// The arithmetic of Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) on plain
// words: for loops that become vectors and for kernels on a GPU. Everything else takes base/philox.h; a test holds the
// two against each other.
#pragma once

#include <cstdint>

#include "titan/base/host_device.h"

namespace titan {

/// The counter goes in, the random words come out.
TITAN_HOST_DEVICE constexpr void philox_words(uint32_t& word0, uint32_t& word1, uint32_t& word2, uint32_t& word3,
                                              uint64_t key) {
  auto key_low = static_cast<uint32_t>(key);
  auto key_high = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * word0;
    const uint64_t product1 = uint64_t{0xCD9E8D57} * word2;
    word0 = static_cast<uint32_t>(product1 >> 32) ^ word1 ^ key_low;
    word1 = static_cast<uint32_t>(product1);
    word2 = static_cast<uint32_t>(product0 >> 32) ^ word3 ^ key_high;
    word3 = static_cast<uint32_t>(product0);
    key_low += 0x9E3779B9;
    key_high += 0xBB67AE85;
  }
}

}  // namespace titan
