#include "titan/data/piece_splitter.h"

#include <array>
#include <cstdint>

#include "titan/base/error.h"

namespace titan {
namespace {

// The expressions as tokenizer files write them (torchtitan.md section 6 has the first).
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

enum class Kind : uint8_t { other, letter, digit, space, newline, beyond_ascii };

constexpr std::array<Kind, 256> kKinds = [] {
  std::array<Kind, 256> kinds{};
  for (int c = 0; c < 256; ++c) {
    if (c >= 0x80) kinds[c] = Kind::beyond_ascii;
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) kinds[c] = Kind::letter;
    if (c >= '0' && c <= '9') kinds[c] = Kind::digit;
    if (c == ' ' || c == '\t' || c == '\v' || c == '\f') kinds[c] = Kind::space;
    if (c == '\r' || c == '\n') kinds[c] = Kind::newline;
  }
  return kinds;
}();

/// A view that knows the kind of each byte; past the end no byte is of any kind.
class AsciiScanner {
 public:
  explicit AsciiScanner(std::string_view text) : text_(text) {}
  bool ended(size_t at) const { return at >= text_.size(); }
  unsigned char at(size_t i) const { return static_cast<unsigned char>(text_[i]); }
  Kind kind(size_t i) const { return kKinds[at(i)]; }
  bool is(size_t i, Kind kind) const { return i < text_.size() && kKinds[at(i)] == kind; }
  size_t skip(size_t i, Kind kind) const {
    while (is(i, kind)) ++i;
    return i;
  }
  bool is_space_or_newline(size_t i) const { return is(i, Kind::space) || is(i, Kind::newline); }

 private:
  std::string_view text_;
};

/// Bytes of an English contraction's ending at the apostrophe `begin` ('s, 't, 're, 've, 'm, 'll, 'd), else 0.
size_t contraction_length(const AsciiScanner& scan, size_t begin) {
  if (!scan.is(begin + 1, Kind::letter)) return 0;
  auto lower = [&](size_t i) { return static_cast<char>(scan.at(i) | 0x20); };
  char first = lower(begin + 1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if (!scan.is(begin + 2, Kind::letter)) return 0;
  char second = lower(begin + 2);
  bool two = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l');
  return two ? 3 : 0;
}

/// The end of a run, or 0 when the character after it is not ASCII and might belong to it.
size_t settled(const AsciiScanner& scan, size_t end) { return scan.is(end, Kind::beyond_ascii) ? 0 : end; }

/// The same in lower case only, as GPT-2 has them.
size_t plain_contraction_length(const AsciiScanner& scan, size_t begin) {
  for (size_t i = begin + 1; i < begin + 3 && !scan.ended(i); ++i) {
    if (scan.at(i) < 'a') return i == begin + 1 ? 0 : contraction_length(scan, begin) == 2 ? 2 : 0;
  }
  return contraction_length(scan, begin);
}

size_t whitespace_end(const AsciiScanner& scan, size_t begin) {
  size_t end = begin;
  size_t after_newline = 0;
  for (; scan.is_space_or_newline(end); ++end) {
    if (scan.is(end, Kind::newline)) after_newline = end + 1;
  }
  if (scan.is(end, Kind::beyond_ascii)) return 0;
  if (after_newline != 0) return after_newline;
  if (scan.ended(end) || end - begin == 1) return end;
  return end - 1;  // the last space goes with the word that follows
}

}  // namespace

size_t PieceSplitter::llama_ascii_end(std::string_view text, size_t begin, size_t most_digits) {
  AsciiScanner scan(text);
  Kind kind = scan.kind(begin);
  if (kind == Kind::letter) return settled(scan, scan.skip(begin + 1, Kind::letter));
  if (kind == Kind::beyond_ascii || scan.is(begin + 1, Kind::beyond_ascii)) return 0;
  if (scan.at(begin) == '\'') {
    if (size_t length = contraction_length(scan, begin)) return begin + length;
    // A letter beyond ASCII may fold to the second letter of an ending; none does, but PCRE2 is the judge.
    if (scan.is(begin + 2, Kind::beyond_ascii)) return 0;
  }
  if (kind == Kind::digit) {
    size_t end = begin + 1;
    while (end < begin + most_digits && scan.is(end, Kind::digit)) ++end;
    return end < begin + most_digits ? settled(scan, end) : end;
  }
  if (kind != Kind::newline && scan.is(begin + 1, Kind::letter)) {
    return settled(scan, scan.skip(begin + 2, Kind::letter));
  }
  bool leading_space = scan.at(begin) == ' ' && scan.is(begin + 1, Kind::other);
  if (kind == Kind::other || leading_space) {
    size_t end = scan.skip(begin + 1, Kind::other);
    return scan.is(end, Kind::beyond_ascii) ? 0 : scan.skip(end, Kind::newline);
  }
  return whitespace_end(scan, begin);
}

size_t PieceSplitter::gpt2_ascii_end(std::string_view text, size_t begin) {
  AsciiScanner scan(text);
  if (scan.at(begin) == '\'') {
    if (size_t length = plain_contraction_length(scan, begin)) return begin + length;
  }
  const size_t first = begin + (scan.at(begin) == ' ' && !scan.ended(begin + 1) ? 1 : 0);
  const Kind kind = scan.kind(first);
  if (kind == Kind::beyond_ascii) return 0;
  if (kind != Kind::space && kind != Kind::newline) return settled(scan, scan.skip(first + 1, kind));
  size_t end = begin;
  while (scan.is_space_or_newline(end)) ++end;
  if (scan.is(end, Kind::beyond_ascii)) return 0;
  return scan.ended(end) || end - begin == 1 ? end : end - 1;  // the last space goes with the word that follows
}

PieceSplitter::PieceSplitter(Rule rule)
    : rule_(rule), most_digits_(rule == Rule::qwen2 ? 1 : 3), pattern_(expression_of(rule), Pattern::Anchor::here) {}

std::string_view PieceSplitter::expression_of(Rule rule) {
  return rule == Rule::llama3 ? kLlama3 : rule == Rule::qwen2 ? kQwen2 : kGpt2;
}

std::optional<PieceSplitter::Rule> PieceSplitter::rule_of(std::string_view expression) {
  for (Rule rule : {Rule::llama3, Rule::qwen2, Rule::gpt2}) {
    if (expression == expression_of(rule)) return rule;
  }
  return std::nullopt;
}

size_t PieceSplitter::expression_piece_end(std::string_view text, size_t begin, Scratch& scratch) const {
  Pattern::Match match;
  // Every character is a letter, a number, whitespace or none of these: some alternative matches at any position.
  TITAN_CHECK(pattern_.find(text, begin, scratch, match), begin, text.size());
  return match.end;
}

}  // namespace titan
