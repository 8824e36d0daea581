#include "titan/data/segment_cutter.h"
#include "titan/data/utf8.h"

namespace titan {
namespace {

/// Python's str.isspace of one character: Unicode category Zs, or bidirectional type WS, B or S.
bool is_python_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_space_at(std::string_view text, size_t at) { return is_python_space(first_code_point(text.substr(at, 4))); }

size_t previous_character(std::string_view text, size_t at) {
  do --at;
  while ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

/// The last place in (begin, end] where whitespace and non-whitespace meet, or `begin` when all is of one kind.
size_t last_change(std::string_view text, size_t begin, size_t end) {
  bool space = is_space_at(text, end);
  for (size_t at = end; at > begin;) {
    size_t before = previous_character(text, at);
    if (is_space_at(text, before) != space) return at;
    at = before;
  }
  return begin;
}

}  // namespace

bool SegmentCutter::next(std::string_view& segment) {
  if (begin_ >= text_.size()) return false;
  auto emit = [&](size_t end) {
    segment = text_.substr(begin_, end - begin_);
    begin_ = run_begin_ = end;
    return true;
  };
  if (begin_ == block_end_) block_end_ = advance_characters(text_, begin_, kBlockCharacters);
  // Leap to where a run from run_begin_ would become too long, and look backwards for a sign that it ended before:
  // in ordinary text that is the last word boundary, and hardly any character is looked at.
  while (true) {
    size_t limit = advance_characters(text_, run_begin_, kRunCharacters);
    if (limit >= block_end_) return emit(block_end_);
    size_t change = last_change(text_, run_begin_, limit);
    if (change == run_begin_) return emit(limit);
    run_begin_ = change;
  }
}

}  // namespace titan
