#include "titan/data/llama3_splitter.h"

#include <array>

#include "titan/base/error.h"
#include "titan/data/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace titan {
namespace {

// The expression of torchtitan.md section 6 with \s written out as Unicode's White_Space: PCRE2's own \s also holds
// U+180E.
#define TITAN_SPACE R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"
constexpr const char* kPattern =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+)"
    R"(|\p{N}{1,3})"
    "| ?[^" TITAN_SPACE R"(\p{L}\p{N}]+[\r\n]*)"
    "|[" TITAN_SPACE R"(]*[\r\n]+)"
    "|[" TITAN_SPACE "]+(?![^" TITAN_SPACE
    "])"
    "|[" TITAN_SPACE "]+";
#undef TITAN_SPACE

constexpr size_t kJitStackStart = size_t{32} << 10;
constexpr size_t kJitStackMost = size_t{8} << 20;

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

size_t Llama3Splitter::ascii_piece_end(std::string_view segment, size_t begin) {
  AsciiScanner scan(segment);
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
    while (end < begin + 3 && scan.is(end, Kind::digit)) ++end;
    return end < begin + 3 ? settled(scan, end) : end;
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

struct Llama3Splitter::Program {
  pcre2_code* code = nullptr;
  ~Program() { pcre2_code_free(code); }
};

struct Llama3Splitter::Scratch::Buffers {
  pcre2_match_data* match = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  ~Buffers() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

Llama3Splitter::Llama3Splitter() : program_(std::make_unique<Program>()) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  program_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern), PCRE2_ZERO_TERMINATED,
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, nullptr);
  TITAN_CHECK(program_->code != nullptr, error, offset);
  // Without a just-in-time compiler (a PCRE2 built without it) matching is slower and otherwise the same.
  pcre2_jit_compile(program_->code, PCRE2_JIT_COMPLETE);
}

Llama3Splitter::~Llama3Splitter() = default;

Llama3Splitter::Scratch::Scratch(const Llama3Splitter& splitter) : buffers_(std::make_unique<Buffers>()) {
  buffers_->match = pcre2_match_data_create_from_pattern(splitter.program_->code, nullptr);
  buffers_->context = pcre2_match_context_create(nullptr);
  buffers_->stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMost, nullptr);
  TITAN_CHECK(buffers_->match && buffers_->context && buffers_->stack);
  pcre2_jit_stack_assign(buffers_->context, nullptr, buffers_->stack);
}

Llama3Splitter::Scratch::~Scratch() = default;

size_t Llama3Splitter::regex_piece_end(std::string_view segment, size_t begin, Scratch& scratch) const {
  auto& buffers = *scratch.buffers_;
  int found = pcre2_match(program_->code, reinterpret_cast<PCRE2_SPTR>(segment.data()), segment.size(), begin,
                          PCRE2_NO_UTF_CHECK, buffers.match, buffers.context);
  // Every character is a letter, a number, whitespace or none of these: some alternative matches at any position.
  TITAN_CHECK(found > 0, found, begin, segment.size());
  return pcre2_get_ovector_pointer(buffers.match)[1];
}

}  // namespace titan
