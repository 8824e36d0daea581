// How two ends of a connection prove to each other that they know the run's secret, without sending it: each answers
// the other's random number with a MAC (HMAC-SHA-1) over both numbers, the port and the caller's rank. A program that
// listens on another port of the run cannot pass such answers on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace titan {

/// HMAC-SHA-1 (RFC 2104) in hexadecimal digits.
std::string keyed_hash(std::string_view key, std::string_view text);

/// What both ends know of one connection.
struct Handshake {
  std::string secret;
  uint16_t port = 0;  // where rank 0 listens
  std::string zero_nonce{}, caller_nonce{};
  int64_t rank = 0;  // of the caller

  std::string zero_proof() const { return proof("rank 0"); }
  std::string caller_proof() const { return proof("caller"); }

 private:
  std::string proof(std::string_view side) const;
};

/// Compares all characters, so that the time tells nothing.
bool is_same_proof(std::string_view a, std::string_view b);

}  // namespace titan
