// Writes small SentencePiece models for tests: protocol buffers by hand.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "src/text/sentencepiece_model.h"

namespace titan::test {

inline std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  return bytes + static_cast<char>(value);
}
inline std::string field(uint32_t number, uint64_t value) { return varint(number << 3) + varint(value); }
inline std::string field(uint32_t number, const std::string& content) {
  return varint(number << 3 | 2) + varint(content.size()) + content;
}
inline std::string piece(const std::string& text, float score, SentencePiece::Type type = SentencePiece::Type::normal) {
  std::string bits(sizeof score, '\0');
  std::memcpy(bits.data(), &score, sizeof score);
  return field(1, field(1, text) + varint(2 << 3 | 5) + bits + field(3, static_cast<uint64_t>(type)));
}

/// <unk>, <s> and </s>, and then `pieces`.
inline std::string model_file(const std::string& pieces, SentencePieceModel::Kind kind, bool extra_spaces_go = false,
                              bool byte_fallback = false) {
  using Type = SentencePiece::Type;
  return piece("<unk>", 0, Type::unknown) + piece("<s>", 0, Type::control) + piece("</s>", 0, Type::control) + pieces +
         field(2, field(3, static_cast<uint64_t>(kind)) + field(35, byte_fallback)) +
         field(3, field(3, uint64_t{1}) + field(4, extra_spaces_go));
}

/// The 256 byte pieces.
inline std::string byte_pieces() {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    all += piece(name, 0, SentencePiece::Type::byte);
  }
  return all;
}

}  // namespace titan::test
