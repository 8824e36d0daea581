// Limits of options that other parts must know, too.
#pragma once

#include <cstdint>

namespace titan {

/// Of a run. Ranks and sequences are multiplied with each other three at a time, in 64 bits.
inline constexpr int64_t kMostRanks = int64_t{1} << 20;

}  // namespace titan
