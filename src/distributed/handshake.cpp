#include "handshake.h"

#include <c10/util/hash.h>
#include <fmt/format.h>

#include <cstdlib>

namespace titan {
namespace {

constexpr size_t kBlock = 64;  // bytes that SHA-1 takes at a time

std::string sha1_bytes(const std::string& text) {
  const std::string digits = c10::sha1(text).str();
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2) {
    bytes += static_cast<char>(std::strtoul(digits.substr(i, 2).c_str(), nullptr, 16));
  }
  return bytes;
}

}  // namespace

std::string keyed_hash(std::string_view key, std::string_view text) {
  std::string padded = key.size() > kBlock ? sha1_bytes(std::string(key)) : std::string(key);
  padded.resize(kBlock);
  std::string inner = padded, outer = padded;
  for (char& c : inner) c ^= 0x36;
  for (char& c : outer) c ^= 0x5c;
  std::string digits;
  for (const char c : sha1_bytes(outer + sha1_bytes(inner.append(text)))) {
    digits += fmt::format("{:02x}", static_cast<unsigned char>(c));
  }
  return digits;
}

std::string Handshake::proof(std::string_view side) const {
  return keyed_hash(secret, fmt::format("titan {} {} {} {} {}", side, port, rank, zero_nonce, caller_nonce));
}

bool is_same_proof(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  int differs = 0;
  for (size_t i = 0; i < a.size(); ++i) differs |= a[i] ^ b[i];
  return differs == 0;
}

}  // namespace titan
