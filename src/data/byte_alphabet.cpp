#include "titan/data/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "titan/data/utf8.h"

namespace titan {
namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

/// The other bytes take the characters from U+0100 on, in order.
constexpr std::array<char32_t, 256> kCharacters = [] {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte)
    characters[byte] = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
  return characters;
}();

constexpr size_t kEnd = 0x100 + 68;  // 68 bytes do not stand for themselves

constexpr std::array<int16_t, kEnd> kBytes = [] {
  std::array<int16_t, kEnd> bytes{};
  bytes.fill(-1);
  for (int byte = 0; byte < 256; ++byte) bytes[kCharacters[byte]] = static_cast<int16_t>(byte);
  return bytes;
}();

}  // namespace

std::string to_byte_alphabet(std::string_view bytes) {
  std::string text;
  for (char byte : bytes) append_utf8(kCharacters[static_cast<unsigned char>(byte)], text);
  return text;
}

std::optional<std::string> from_byte_alphabet(std::string_view text) {
  std::string bytes;
  for (size_t at = 0; at < text.size(); at += utf8_length(static_cast<unsigned char>(text[at]))) {
    const char32_t character = first_code_point(text.substr(at));
    if (character >= kEnd || kBytes[character] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kBytes[character]));
  }
  return bytes;
}

}  // namespace titan
