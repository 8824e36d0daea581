// Shared by CPU loops over plain memory: values are fp32 or bf16 in memory and fp32 in registers, and each loop is
// compiled for several instruction sets.
#pragma once

#include <bit>
#include <cstdint>

/// Marks a function whose loops are vectorised: one body, several instruction sets, dispatched at run time.
/// cmake/Parts.cmake sets the compile options of files named cpu_*.cpp.
#define TITAN_VECTORISED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
/// Marks functions that vectorised functions call.
#define TITAN_INLINE inline __attribute__((always_inline))

namespace titan {

/// A bf16 value in memory: the upper half of an fp32.
struct BFloat16Bits {
  uint16_t bits;
};

TITAN_INLINE float widen(float value) { return value; }
TITAN_INLINE float widen(BFloat16Bits value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

TITAN_INLINE void narrow(float value, float& out) { out = value; }
/// Rounds to nearest, ties to even; NaN stays NaN.
TITAN_INLINE void narrow(float value, BFloat16Bits& out) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  out.bits = static_cast<uint16_t>(value != value ? 0x7FC0 : rounded);
}

}  // namespace titan
