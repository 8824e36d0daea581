#include "crc32.h"

#include <zlib.h>

#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace titan {
namespace {

uint32_t by_zlib(uint32_t before, const char* bytes, size_t count) {
  return static_cast<uint32_t>(crc32_z(before, reinterpret_cast<const Bytef*>(bytes), count));
}

#if defined(__x86_64__)

/// x^power modulo the polynomial, with its bits in the order of the data (the lowest bit is the highest power) and one
/// place up, as the carry-less product of two such numbers needs it.
constexpr uint64_t power_of_x(int power) {
  uint32_t remainder = 1;
  for (int i = 0; i < power; ++i) remainder = (remainder << 1) ^ (remainder >> 31 ? 0x04C11DB7u : 0u);
  uint64_t reflected = 0;
  for (int bit = 0; bit < 32; ++bit) reflected |= uint64_t{remainder >> bit & 1} << (31 - bit);
  return reflected << 1;
}

/// Moves `lane` on by `Bits` bits and adds `data`: 128 bits that stand for the same remainder as both, one behind the
/// other (Gopal et al., "Fast CRC computation for generic polynomials using PCLMULQDQ", Intel, 2009).
template <int Bits>
__attribute__((target("pclmul,sse4.1"), always_inline)) inline __m128i fold(__m128i lane, __m128i data) {
  const __m128i powers =
      _mm_set_epi64x(static_cast<int64_t>(power_of_x(Bits - 32)), static_cast<int64_t>(power_of_x(Bits + 32)));
  const __m128i low = _mm_clmulepi64_si128(lane, powers, 0x00);
  const __m128i high = _mm_clmulepi64_si128(lane, powers, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), data);
}

__attribute__((target("pclmul,sse4.1"))) uint32_t by_products(uint32_t before, const char* bytes, size_t count) {
  const auto load = [](const char* from) __attribute__((target("pclmul,sse4.1"))) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  };
  constexpr size_t kLanes = 4, kLane = 16, kStride = kLanes * kLane;
  __m128i lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = load(bytes + i * kLane);
  lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128(static_cast<int>(~before)));
  size_t done = kStride;
  for (; count - done >= kStride; done += kStride) {
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = fold<8 * kStride>(lanes[i], load(bytes + done + i * kLane));
  }
  __m128i all = lanes[0];
  for (size_t i = 1; i < kLanes; ++i) all = fold<8 * kLane>(all, lanes[i]);
  // What is left of it all are sixteen bytes with the same remainder, and those at the end.
  char sixteen[kLane];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(sixteen), all);
  constexpr uint32_t kFromZero = 0xFFFFFFFF;  // zlib inverts what it begins with
  return by_zlib(by_zlib(kFromZero, sixteen, kLane), bytes + done, count - done);
}

#endif

}  // namespace

uint32_t zip_checksum(uint32_t before, std::string_view bytes) {
#if defined(__x86_64__)
  constexpr size_t kWorthIt = 256;
  if (bytes.size() >= kWorthIt && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1")) {
    return by_products(before, bytes.data(), bytes.size());
  }
#endif
  return by_zlib(before, bytes.data(), bytes.size());
}

}  // namespace titan
