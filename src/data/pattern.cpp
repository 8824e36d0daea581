#include "titan/data/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "titan/base/error.h"
#include "titan/data/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace titan {
namespace {

// Unicode's White_Space: PCRE2's own \s also holds U+180E.
constexpr std::string_view kSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
// Unicode's word characters: Alphabetic, marks, decimal digits, connectors and joiners. PCRE2's own \w differs.
constexpr std::string_view kWord =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200c}\x{200d}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";

constexpr size_t kJitStackStart = size_t{32} << 10;
constexpr size_t kJitStackMost = size_t{8} << 20;

[[noreturn]] void refuse(std::string_view expression, std::string_view what) {
  std::string shown(expression.substr(0, 200));
  repair_utf8(shown);
  throw Error(ExitCode::bad_data,
              fmt::format("the expression {}{} {}", shown, expression.size() > 200 ? "…" : "", what));
}

/// Rewrites an expression from left to right.
class Translator {
 public:
  explicit Translator(std::string_view expression) : expression_(expression) {}

  std::string run() {
    while (at_ < expression_.size()) step();
    return std::move(out_);
  }

 private:
  void step() {
    char c = expression_[at_];
    if (c == '\\') return escape();
    if (in_class_) {
      if (c == '[' && !expression_.substr(at_).starts_with("[:")) refuse(expression_, "has a class inside a class");
      if (expression_.substr(at_).starts_with("&&")) refuse(expression_, "has an intersection of classes (&&)");
      if (c == ']' && at_ > class_begin_) in_class_ = false;
    } else if (c == '[') {
      in_class_ = true;
      class_begin_ = at_ + (expression_.substr(at_).starts_with("[^") ? 2 : 1);
      // Up to the place where a ']' would be an ordinary character.
      out_ += expression_.substr(at_, class_begin_ - at_);
      at_ = class_begin_;
      return;
    } else if (c == '^' || c == '$') {
      refuse(expression_, "has an anchor (^ or $)");
    } else if (expression_.substr(at_).starts_with("}+")) {
      refuse(expression_, "has }+, which regular expression engines understand differently");
    }
    out_ += c;
    ++at_;
  }

  void escape() {
    if (at_ + 1 >= expression_.size()) refuse(expression_, "ends in a backslash");
    char kind = expression_[at_ + 1];
    if (kind == 's' || kind == 'w') {
      std::string_view set = kind == 's' ? kSpace : kWord;
      out_ += in_class_ ? std::string(set) : fmt::format("[{}]", set);
    } else if ((kind == 'S' || kind == 'W') && !in_class_) {
      out_ += fmt::format("[^{}]", kind == 'S' ? kSpace : kWord);
    } else if (std::string_view("hHRXKGbBAzZSW").find(kind) != std::string_view::npos) {
      refuse(expression_, fmt::format("has \\{}{}", kind, in_class_ ? " in a class" : ""));
    } else {
      // \p{L} and \x{9} end at their brace, which is none that counts repetitions.
      const bool braced = (kind == 'p' || kind == 'P' || kind == 'x') && expression_.substr(at_ + 2).starts_with('{');
      const size_t end = braced ? std::min(expression_.find('}', at_), expression_.size() - 1) + 1 : at_ + 2;
      out_ += expression_.substr(at_, end - at_);
      at_ = end;
      return;
    }
    at_ += 2;
  }

  std::string_view expression_;
  std::string out_;
  size_t at_ = 0;
  bool in_class_ = false;
  size_t class_begin_ = 0;
};

}  // namespace

struct Pattern::Program {
  pcre2_code* code = nullptr;
  ~Program() { pcre2_code_free(code); }
};

struct Pattern::Scratch::Buffers {
  pcre2_match_data* match = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
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
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | (anchor == Anchor::here ? PCRE2_ANCHORED : 0u);
  program_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(ours.data()), ours.size(), options, &error, &offset, nullptr);
  if (program_->code == nullptr) {
    std::string message(256, '\0');
    const int length = pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message.data()), message.size());
    message.resize(length > 0 ? static_cast<size_t>(length) : 0);
    refuse(expression, fmt::format("is none that PCRE2 understands ({})", message));
  }
  // Without a just-in-time compiler (a PCRE2 built without it) matching is slower and otherwise the same.
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

bool Pattern::find(std::string_view text, size_t from, Scratch& scratch, Match& match) const {
  auto& buffers = *scratch.buffers_;
  const int found = pcre2_match(program_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, buffers.match, buffers.context);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) {
    throw Error(
        ExitCode::bad_data,
        fmt::format("the tokenizer's expression gives up at byte {} of a text of {} bytes (PCRE2 error {}). Use "
                    "a simpler expression, or tokenise this text with the tokenizer's own package.",
                    from, text.size(), found));
  }
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(buffers.match);
  match = {bounds[0], bounds[1]};
  return true;
}

std::string Pattern::translated(std::string_view expression) { return Translator(expression).run(); }

}  // namespace titan
