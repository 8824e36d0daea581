// UTF-8 validation, and Python's decode("utf-8", "replace") for invalid bytes. Pure functions on bytes. Text is made
// valid here when it is read, so all other code can assume valid text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace titan {

/// Length in bytes of the longest prefix of `text` that is valid UTF-8 (no surrogates, nothing above U+10FFFF).
size_t valid_utf8_length(std::string_view text);

/// Replaces each malformed sequence by U+FFFD and returns how many there were. A sequence is the longest prefix of a
/// well-formed character, or one byte (the "maximal subpart" rule of the Unicode Standard, section 3.9).
int64_t repair_utf8(std::string& text);

/// `text` itself if valid; otherwise a repaired copy, stored in `storage`.
std::string_view valid_utf8(std::string_view text, std::string& storage);

/// Length in bytes of the character with the first byte `lead`; the text must be valid.
constexpr size_t utf8_length(unsigned char lead) { return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

/// The code point of the first character of valid, non-empty text.
char32_t first_code_point(std::string_view text);

/// The offset `characters` characters after the character boundary `at`, or the end of the (valid) text.
size_t advance_characters(std::string_view text, size_t at, int64_t characters);

/// Start of the character before `at` > 0.
size_t previous_character(std::string_view text, size_t at);

/// Unicode's White_Space.
bool is_white_space(char32_t c);

/// Python's str.strip for valid text: removes characters of `set` from its ends; without `set`, White_Space and the
/// separators U+001C to U+001F.
std::string_view strip_characters(std::string_view text, const std::string* set = nullptr, bool left = true,
                                  bool right = true);

void append_utf8(char32_t code_point, std::string& text);

// "▁", which SentencePiece and similar tokenizers write for a space, to mark the start of a word. Pure functions.

inline constexpr std::string_view kWordMark = "\xE2\x96\x81";

/// The end of the word that starts at `begin` < text.size(): the first mark after a non-mark character. Leading marks
/// belong to the word.
inline size_t marked_word_end(std::string_view text, size_t begin) {
  size_t at = begin;
  while (text.substr(at).starts_with(kWordMark)) at += kWordMark.size();
  if (at == text.size()) return at;
  at = text.find(kWordMark, at);
  return at == text.npos ? text.size() : at;
}

}  // namespace titan
