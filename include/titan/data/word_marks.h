// "▁", the character that SentencePiece and those who follow it write for a space, as the mark of where words begin.
// Pure functions.
#pragma once

#include <cstddef>
#include <string_view>

namespace titan {

inline constexpr std::string_view kWordMark = "\xE2\x96\x81";

/// The end of the word that begins at `begin` < text.size(): where a mark follows something that is no mark. Marks at
/// the front belong to the word.
inline size_t marked_word_end(std::string_view text, size_t begin) {
  size_t at = begin;
  while (text.substr(at).starts_with(kWordMark)) at += kWordMark.size();
  if (at == text.size()) return at;
  at = text.find(kWordMark, at);
  return at == text.npos ? text.size() : at;
}

}  // namespace titan
