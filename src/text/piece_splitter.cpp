#include "piece_splitter.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdint>
#include <new>

#include "titan/base/error.h"
#include "titan/text/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace titan {
namespace {

// Unicode's White_Space: PCRE2's own \s also includes U+180E.
constexpr std::string_view kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
// Oniguruma's word characters: letters, marks, digits, connectors and a few others. PCRE2's own \w differs. Outside of
// a class, ² to ¾ are some, too.
constexpr std::string_view kLatinWord = R"(\x{b2}\x{b3}\x{b9}\x{bc}-\x{be})";
constexpr std::string_view kWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";
// PCRE2's own stack for its JIT has 32 KiB, and long matches overflow it; this one grows.
constexpr size_t kJitStackStart = size_t{32} << 10;
constexpr size_t kJitStackMost = size_t{8} << 20;
// A search without a match looks at every place, and from each to the end of the text: see Pattern::find.
constexpr size_t kSearchedPlaces = 1024;
// Time of the searches of one text that found nothing. Far below comm.train_timeout_seconds (100 by default), after
// which the error would be that data or a rank is late, and would not name the expression.
constexpr std::chrono::seconds kLongestSearch{20};

[[noreturn]] void refuse_expression(std::string_view expression, std::string_view what) {
  std::string shown(expression.substr(0, 200));
  repair_utf8(shown);
  throw Error(ExitCode::bad_data,
              fmt::format("the expression {}{} {}", shown, expression.size() > 200 ? "…" : "", what));
}

// For \S in a class: PCRE2 cannot subtract kSpace from a class, so the other characters are listed.
constexpr std::string_view kNoSpace =
    R"(\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff})";

/// Translates an expression from left to right.
class Translator {
 public:
  explicit Translator(std::string_view expression) : expression_(expression) {}

  std::string run() {
    while (at_ < expression_.size()) step();
    return std::move(out_);
  }

 private:
  bool follows(std::string_view text) const { return expression_.substr(at_).starts_with(text); }
  void take(size_t bytes, std::string_view as) {
    out_ += as;
    at_ += bytes;
  }

  void step() {
    const char c = expression_[at_];
    if (c == '\\') return escape();
    if (depth_ > 0) return step_in_class(c);
    if (c == '[') {
      depth_ = 1;
      const bool negated = follows("[^");
      take(negated ? 2 : 1, negated ? "[^" : "[");
      if (follows("]")) take(1, "\\]");  // in Oniguruma the first one in a class is itself
      return;
    }
    // Of lines, as in Oniguruma; none begins at the end of the text.
    if (c == '^') return take(1, R"((?:\A|(?<=\n)(?!\z)))");
    if (c == '$') return take(1, R"((?=\n|\z))");
    if (c == '(' && follows("(?")) return group();
    if (follows("}+"))
      refuse_expression(expression_, "has }+, which regular expression engines understand differently");
    take(1, expression_.substr(at_, 1));
  }

  /// A class within a class adds to it.
  void step_in_class(char c) {
    if (follows("&&")) refuse_expression(expression_, "has an intersection of classes (&&)");
    if (c == '[') {
      if (follows("[:")) return posix_class();
      if (follows("[^")) refuse_expression(expression_, "has a class inside a class that excludes characters");
      ++depth_;
      take(1, "");
      if (follows("]")) refuse_expression(expression_, "has an empty class");
      return;
    }
    if (c == ']' && --depth_ > 0) return take(1, "");
    take(1, expression_.substr(at_, 1));
  }

  void posix_class() {
    const size_t end = std::min(expression_.find(":]", at_), expression_.size());
    const std::string_view name = expression_.substr(at_ + 2, end - at_ - 2);
    if (name == "space") return take(name.size() + 4, kSpace);
    if (name == "word") return take(name.size() + 4, kWord);
    if (name == "punct") return take(name.size() + 4, R"(\p{P}\p{S})");
    if (name == "digit") return take(name.size() + 4, R"(\p{Nd})");
    if (name == "xdigit") return take(name.size() + 4, "0-9A-Fa-f");
    refuse_expression(expression_, fmt::format("has the class [:{}:]", name));
  }

  /// In Oniguruma's syntax (?m) lets a dot match line feeds, which is PCRE2's (?s).
  void group() {
    size_t end = at_ + 2;
    while (end < expression_.size() &&
           (std::isalpha(static_cast<unsigned char>(expression_[end])) != 0 || expression_[end] == '-')) {
      ++end;
    }
    const bool flags =
        end > at_ + 2 && end < expression_.size() && (expression_[end] == ')' || expression_[end] == ':');
    std::string text(expression_.substr(at_, flags ? end - at_ : 2));
    if (flags) {
      if (text.find_first_not_of("imx-", 2) != text.npos)
        refuse_expression(expression_, fmt::format("has the flags {})", text));
      std::replace(text.begin(), text.end(), 'm', 's');
    }
    take(flags ? end - at_ : 2, text);
  }

  /// Word boundaries, `[{0}]` being the word characters.
  static std::string boundary(bool is_one) {
    const std::string word = fmt::format("[{}{}]", kWord, kLatinWord);
    return is_one ? fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word)
                  : fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word);
  }

  void escape() {
    if (at_ + 1 >= expression_.size()) refuse_expression(expression_, "ends in a backslash");
    const char kind = expression_[at_ + 1];
    const bool in_class = depth_ > 0;
    const auto set = [&](std::string_view of) { take(2, in_class ? std::string(of) : fmt::format("[{}]", of)); };
    if (kind == 's') return set(kSpace);
    if (kind == 'S') return set(kNoSpace);
    if (kind == 'w') return set(in_class ? std::string(kWord) : fmt::format("{}{}", kWord, kLatinWord));
    if (kind == 'h') return set("0-9A-Fa-f");
    if (kind == 'v') return set(R"(\x{b})");
    if (kind == 'W' && !in_class) return take(2, fmt::format("[^{}{}]", kWord, kLatinWord));
    if (kind == 'H' && !in_class) return take(2, "[^0-9A-Fa-f]");
    if (kind == 'R' && !in_class) return take(2, R"((?>\r\n|[\n-\r\x{85}\x{2028}\x{2029}]))");
    if ((kind == 'b' || kind == 'B') && !in_class) return take(2, boundary(kind == 'b'));
    if (kind == 'u') return code_point();
    const bool place = kind == 'A' || kind == 'z' || kind == 'Z';
    if (std::string_view("HRXKGbBCQEOyYWMgkN").find(kind) != std::string_view::npos || (place && in_class)) {
      refuse_expression(expression_, fmt::format("has \\{}{}", kind, in_class ? " in a class" : ""));
    }
    // \p{L} and \x{9} are copied with their braces, which would otherwise be read as those of a repetition count.
    const bool braced = (kind == 'p' || kind == 'P' || kind == 'x') && expression_.substr(at_ + 2).starts_with('{');
    const size_t end = braced ? std::min(expression_.find('}', at_), expression_.size() - 1) + 1 : at_ + 2;
    take(end - at_, expression_.substr(at_, end - at_));
  }

  /// \uHHHH
  void code_point() {
    const std::string_view digits = expression_.substr(std::min(at_ + 2, expression_.size())).substr(0, 4);
    const bool good = digits.size() == 4 && digits.find_first_not_of("0123456789abcdefABCDEF") == digits.npos;
    if (!good) refuse_expression(expression_, "has \\u without four digits");
    take(6, fmt::format(R"(\x{{{}}})", digits));
  }

  std::string_view expression_;
  std::string out_;
  size_t at_ = 0;
  int depth_ = 0;  // of classes
};

}  // namespace

struct Pattern::Program {
  pcre2_code* code = nullptr;
  bool is_anchored = false;
  ~Program() { pcre2_code_free(code); }
};

struct Pattern::Scratch::Buffers {
  pcre2_match_data* match = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  std::chrono::steady_clock::duration searched{};  // without a result, in this text
  ~Buffers() {
    pcre2_match_data_free(match);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

Pattern::Pattern(std::string_view expression, Anchor anchor) : program_(std::make_unique<Program>()) {
  const std::string ours = translated(expression);
  int error = 0;
  PCRE2_SIZE offset = 0;
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_USE_OFFSET_LIMIT;
  program_->is_anchored = anchor == Anchor::here;
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  // In Oniguruma a dot excludes LF alone; how PCRE2 was built decides its own default.
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  program_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(ours.data()), ours.size(),
                    options | (program_->is_anchored ? PCRE2_ANCHORED : 0u), &error, &offset, context.get());
  if (program_->code == nullptr) {
    std::string message(256, '\0');
    const int length = pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message.data()), message.size());
    message.resize(length > 0 ? static_cast<size_t>(length) : 0);
    refuse_expression(expression, fmt::format("is not valid in PCRE2 ({})", message));
  }
  // If PCRE2 was built without its JIT compiler, matching is slower but gives the same result.
  pcre2_jit_compile(program_->code, PCRE2_JIT_COMPLETE);
}

Pattern::~Pattern() = default;

Pattern::Scratch::Scratch(const Pattern& pattern) : buffers_(std::make_unique<Buffers>()) {
  buffers_->match = pcre2_match_data_create_from_pattern(pattern.program_->code, nullptr);
  buffers_->context = pcre2_match_context_create(nullptr);
  buffers_->stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMost, nullptr);
  if (!buffers_->match || !buffers_->context || !buffers_->stack) throw std::bad_alloc();
  pcre2_jit_stack_assign(buffers_->context, nullptr, buffers_->stack);
}

Pattern::Scratch::~Scratch() = default;

void Pattern::Scratch::start_text() { buffers_->searched = {}; }

bool Pattern::search(std::string_view text, size_t from, uint32_t options, Scratch& scratch, Match& match) const {
  auto& buffers = *scratch.buffers_;
  const auto give_up = [&](const std::string& why) {
    throw Error(ExitCode::bad_data,
                fmt::format("the tokenizer's expression gives up at byte {} of a text of {} bytes ({}). Use a simpler "
                            "expression, or tokenise this text with the tokenizer's own package.",
                            from, text.size(), why));
  };
  for (size_t at = from;;) {
    // In steps, since a search from each place to the end takes hours where nothing matches.
    const size_t last = program_->is_anchored ? text.size() : std::min(at + kSearchedPlaces, text.size());
    pcre2_set_offset_limit(buffers.context, last);
    const bool one_step = last == text.size();
    const auto began = one_step ? std::chrono::steady_clock::time_point() : std::chrono::steady_clock::now();
    const int found = pcre2_match(program_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                  PCRE2_NO_UTF_CHECK | options, buffers.match, buffers.context);
    if (found >= 0) break;
    if (found != PCRE2_ERROR_NOMATCH) give_up(fmt::format("PCRE2 error {}", found));
    if (one_step) return false;
    buffers.searched += std::chrono::steady_clock::now() - began;
    if (buffers.searched > kLongestSearch) give_up(fmt::format("after {} s", kLongestSearch.count()));
    at = last + 1;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
  }
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(buffers.match);
  match = {bounds[0], bounds[1]};
  return true;
}

bool Pattern::find(std::string_view text, size_t from, Scratch& scratch, Match& match) const {
  return search(text, from, PCRE2_NOTEMPTY, scratch, match);
}

bool Pattern::next(std::string_view text, Walk& walk, Scratch& scratch, Match& match) const {
  while (walk.from <= text.size() && search(text, walk.from, 0, scratch, match)) {
    if (match.begin < match.end || walk.last_end != match.end) {
      walk.from = match.end;
      walk.last_end = match.end;
      return true;
    }
    if (walk.from == text.size()) return false;
    walk.from += utf8_length(static_cast<unsigned char>(text[walk.from]));
  }
  return false;
}

std::string Pattern::translated(std::string_view expression) { return Translator(expression).run(); }

namespace {

// Spelled as in tokenizer files, since they are compared as text: one of these has code of its own, without PCRE2.
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

enum class CharacterKind : uint8_t { other, letter, digit, space, newline, beyond_ascii };

constexpr std::array<CharacterKind, 256> kKinds = [] {
  std::array<CharacterKind, 256> kinds{};
  for (int c = 0; c < 256; ++c) {
    if (c >= 0x80) kinds[c] = CharacterKind::beyond_ascii;
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) kinds[c] = CharacterKind::letter;
    if (c >= '0' && c <= '9') kinds[c] = CharacterKind::digit;
    if (c == ' ' || c == '\t' || c == '\v' || c == '\f') kinds[c] = CharacterKind::space;
    if (c == '\r' || c == '\n') kinds[c] = CharacterKind::newline;
  }
  return kinds;
}();

/// A view that classifies each byte; positions past the end have no class.
class AsciiScanner {
 public:
  explicit AsciiScanner(std::string_view text) : text_(text) {}
  bool ended(size_t at) const { return at >= text_.size(); }
  unsigned char at(size_t i) const { return static_cast<unsigned char>(text_[i]); }
  CharacterKind kind(size_t i) const { return kKinds[at(i)]; }
  bool is(size_t i, CharacterKind kind) const { return i < text_.size() && kKinds[at(i)] == kind; }
  size_t skip(size_t i, CharacterKind kind) const {
    while (is(i, kind)) ++i;
    return i;
  }
  bool is_space_or_newline(size_t i) const { return is(i, CharacterKind::space) || is(i, CharacterKind::newline); }

 private:
  std::string_view text_;
};

/// Length of an English contraction at the apostrophe `begin` ('s, 't, 're, 've, 'm, 'll, 'd), else 0.
size_t contraction_length(const AsciiScanner& scan, size_t begin) {
  if (!scan.is(begin + 1, CharacterKind::letter)) return 0;
  auto lower = [&](size_t i) { return static_cast<char>(scan.at(i) | 0x20); };
  char first = lower(begin + 1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if (!scan.is(begin + 2, CharacterKind::letter)) return 0;
  char second = lower(begin + 2);
  bool two = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l');
  return two ? 3 : 0;
}

/// The end of a run, or 0 if the next character is not ASCII and might belong to it.
size_t settled(const AsciiScanner& scan, size_t end) { return scan.is(end, CharacterKind::beyond_ascii) ? 0 : end; }

/// The same, lower case only, as in GPT-2's expression.
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
    if (scan.is(end, CharacterKind::newline)) after_newline = end + 1;
  }
  if (scan.is(end, CharacterKind::beyond_ascii)) return 0;
  if (after_newline != 0) return after_newline;
  if (scan.ended(end) || end - begin == 1) return end;
  return end - 1;  // \s+(?!\S): the last space belongs to the next word
}

}  // namespace

size_t PieceSplitter::llama_ascii_end(std::string_view text, size_t begin, size_t most_digits) {
  AsciiScanner scan(text);
  CharacterKind kind = scan.kind(begin);
  if (kind == CharacterKind::letter) return settled(scan, scan.skip(begin + 1, CharacterKind::letter));
  if (kind == CharacterKind::beyond_ascii || scan.is(begin + 1, CharacterKind::beyond_ascii)) return 0;
  if (scan.at(begin) == '\'') {
    if (size_t length = contraction_length(scan, begin)) return begin + length;
    // A non-ASCII letter could case-fold to the second letter of a contraction. None does, but PCRE2 decides.
    if (scan.is(begin + 2, CharacterKind::beyond_ascii)) return 0;
  }
  if (kind == CharacterKind::digit) {
    size_t end = begin + 1;
    while (end < begin + most_digits && scan.is(end, CharacterKind::digit)) ++end;
    return end < begin + most_digits ? settled(scan, end) : end;
  }
  if (kind != CharacterKind::newline && scan.is(begin + 1, CharacterKind::letter)) {
    return settled(scan, scan.skip(begin + 2, CharacterKind::letter));
  }
  bool leading_space = scan.at(begin) == ' ' && scan.is(begin + 1, CharacterKind::other);
  if (kind == CharacterKind::other || leading_space) {
    size_t end = scan.skip(begin + 1, CharacterKind::other);
    return scan.is(end, CharacterKind::beyond_ascii) ? 0 : scan.skip(end, CharacterKind::newline);
  }
  return whitespace_end(scan, begin);
}

size_t PieceSplitter::gpt2_ascii_end(std::string_view text, size_t begin) {
  AsciiScanner scan(text);
  if (scan.at(begin) == '\'') {
    if (size_t length = plain_contraction_length(scan, begin)) return begin + length;
  }
  const size_t first = begin + (scan.at(begin) == ' ' && !scan.ended(begin + 1) ? 1 : 0);
  const CharacterKind kind = scan.kind(first);
  if (kind == CharacterKind::beyond_ascii) return 0;
  if (kind != CharacterKind::space && kind != CharacterKind::newline) return settled(scan, scan.skip(first + 1, kind));
  size_t end = begin;
  while (scan.is_space_or_newline(end)) ++end;
  if (scan.is(end, CharacterKind::beyond_ascii)) return 0;
  return scan.ended(end) || end - begin == 1 ? end : end - 1;  // the last space belongs to the next word
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
  // Every character is a letter, a number, whitespace or other, so some alternative matches at any position.
  TITAN_CHECK(pattern_.find(text, begin, scratch, match), begin, text.size());
  return match.end;
}

}  // namespace titan
