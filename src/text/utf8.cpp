#include "titan/text/utf8.h"

#include <cstring>

namespace titan {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

bool is_continuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

/// The smallest and largest second byte that may follow a lead byte (table 3-7 of the Unicode Standard).
struct SecondByte {
  unsigned char low = 0x80, high = 0xBF;
};
SecondByte second_byte_after(unsigned char lead) {
  switch (lead) {
    case 0xE0:
      return {0xA0, 0xBF};  // excludes overlong forms
    case 0xED:
      return {0x80, 0x9F};  // excludes surrogates, which belong to UTF-16
    case 0xF0:
      return {0x90, 0xBF};
    case 0xF4:
      return {0x80, 0x8F};  // excludes code points above U+10FFFF, the last
    default:
      return {};
  }
}

struct Sequence {
  size_t length;  // bytes of the character, or of the malformed sequence
  bool valid;
};

/// Classifies the non-ASCII sequence at the front of `text`.
Sequence examine(std::string_view text) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  unsigned char lead = byte(0);
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  size_t wanted = utf8_length(lead);
  SecondByte range = second_byte_after(lead);
  if (text.size() < 2 || byte(1) < range.low || byte(1) > range.high) return {1, false};
  for (size_t i = 2; i < wanted; ++i) {
    if (i >= text.size() || !is_continuation(byte(i))) return {i, false};
  }
  return {wanted, true};
}

}  // namespace

size_t valid_utf8_length(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight;
    if (at + sizeof eight <= text.size()) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    Sequence sequence = examine(text.substr(at));
    if (!sequence.valid) return at;
    at += sequence.length;
  }
  return at;
}

int64_t repair_utf8(std::string& text) {
  size_t valid = valid_utf8_length(text);
  if (valid == text.size()) return 0;
  std::string repaired;
  repaired.reserve(text.size() + 16);
  std::string_view rest = text;
  int64_t replaced = 0;
  while (true) {
    repaired.append(rest.substr(0, valid));
    rest.remove_prefix(valid);
    if (rest.empty()) break;
    repaired.append(kReplacement);
    rest.remove_prefix(examine(rest).length);
    ++replaced;
    valid = valid_utf8_length(rest);
  }
  text = std::move(repaired);
  return replaced;
}

std::string_view valid_utf8(std::string_view text, std::string& storage) {
  if (valid_utf8_length(text) == text.size()) return text;
  storage = text;
  repair_utf8(storage);
  return storage;
}

char32_t first_code_point(std::string_view text) {
  auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[i])); };
  switch (utf8_length(static_cast<unsigned char>(text[0]))) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  }
}

size_t advance_characters(std::string_view text, size_t at, int64_t characters) {
  constexpr uint64_t kOnes = 0x0101010101010101u;  // eight bytes at a time: long texts are cut by it
  while (characters >= 8 && at + 8 <= text.size()) {
    uint64_t eight;
    std::memcpy(&eight, text.data() + at, sizeof eight);
    uint64_t continuations = eight >> 7 & ~(eight >> 6) & kOnes;
    characters -=
        8 - static_cast<int64_t>(continuations * kOnes >> 56);  // multiplying adds up all bytes in the top one: no loop
    at += 8;
  }
  while (at < text.size() && is_continuation(static_cast<unsigned char>(text[at]))) ++at;
  for (; characters > 0 && at < text.size(); --characters) at += utf8_length(static_cast<unsigned char>(text[at]));
  return at;
}

size_t previous_character(std::string_view text, size_t at) {
  do --at;
  while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

void append_utf8(char32_t code_point, std::string& text) {
  auto add = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    add(code_point);
  } else if (code_point < 0x800) {
    add(0xC0 | code_point >> 6);
    add(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    add(0xE0 | code_point >> 12);
    add(0x80 | (code_point >> 6 & 0x3F));
    add(0x80 | (code_point & 0x3F));
  } else {
    add(0xF0 | code_point >> 18);
    add(0x80 | (code_point >> 12 & 0x3F));
    add(0x80 | (code_point >> 6 & 0x3F));
    add(0x80 | (code_point & 0x3F));
  }
}

std::string_view strip_characters(std::string_view text, const std::string* set, bool left, bool right) {
  const auto goes = [&](size_t at) {
    const size_t length = utf8_length(static_cast<unsigned char>(text[at]));
    if (set) return set->find(text.substr(at, length)) != std::string::npos;
    const char32_t c = first_code_point(text.substr(at));
    return is_white_space(c) || (c >= 0x1C && c <= 0x1F);
  };
  while (left && !text.empty() && goes(0)) text.remove_prefix(utf8_length(static_cast<unsigned char>(text[0])));
  while (right && !text.empty()) {
    const size_t last = previous_character(text, text.size());
    if (!goes(last)) break;
    text = text.substr(0, last);
  }
  return text;
}

}  // namespace titan
