// The CRC-32 of zip archives (polynomial 0x04C11DB7, reflected), at the speed of memory where the processor multiplies
// polynomials: zlib alone would take half of a save's time.
#pragma once

#include <cstdint>
#include <string_view>

namespace titan {

/// Of bytes seen before, whose CRC is `before` (0 for none), followed by `bytes`.
uint32_t zip_checksum(uint32_t before, std::string_view bytes);

}  // namespace titan
