// Texts and numbers in Jinja's expressions.
#include <algorithm>
#include <cctype>
#include <charconv>

#include "chat_jinja_expressions.h"
#include "titan/text/utf8.h"

namespace titan::jinja {

Expression ExpressionParser::text() {
  std::string whole = literal();
  std::optional<std::string> refused = refused_;
  while (rest().starts_with('\'') || rest().starts_with('"')) {
    whole += literal();
    if (!refused) refused = refused_;
  }
  return refused ? Expression{Op::refuse, *refused} : Expression{Op::text, whole};
}

std::string ExpressionParser::literal() {
  const char quote = source_[at_];
  std::string text;
  refused_.reset();
  for (++at_; at_ < source_.size() && source_[at_] != quote;) {
    if (source_[at_] == '\\' && at_ + 1 < source_.size()) {
      escape(text);
    } else {
      text.push_back(source_[at_++]);
    }
  }
  if (at_ == source_.size()) unexpected();
  ++at_;
  return text;
}

/// One of Python's escapes. Those that Python does not know stay as they are; a backslash at a line's end removes both.
void ExpressionParser::escape(std::string& text) {
  constexpr std::string_view kEscapes = "ntr\\'\"abfv", kMeanings = "\n\t\r\\'\"\a\b\f\v";
  const char letter = source_[at_ + 1];
  at_ += 2;
  if (letter == '\n') return;
  if (const size_t meaning = kEscapes.find(letter); meaning != kEscapes.npos) {
    text.push_back(kMeanings[meaning]);
    return;
  }
  const bool octal = letter >= '0' && letter <= '7';
  const size_t wanted = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : octal ? 3 : 0;
  if (letter == 'N') refused_ = "the escape \\N";
  if (wanted == 0) {
    text.push_back('\\');
    text.push_back(letter);
    return;
  }
  if (octal) --at_;
  const size_t end = std::min(source_.size(), at_ + wanted);
  uint32_t code = 0;
  const auto read = std::from_chars(source_.data() + at_, source_.data() + end, code, octal ? 8 : 16);
  const auto digits = static_cast<size_t>(read.ptr - (source_.data() + at_));
  if ((!octal && digits != wanted) || code > 0x10FFFF) fail("an escape is damaged");
  at_ += digits;
  if (code >= 0xD800 && code < 0xE000) {
    refused_ = "half of a surrogate pair";
  } else {
    append_utf8(code, text);
  }
}

/// Whole numbers in four bases and real ones, with underscores between digits.
Expression ExpressionParser::numeral() {
  const size_t begin = at_;
  const auto digits = [&](auto is) {
    const size_t from = at_;
    while (at_ < source_.size() && (is(source_[at_]) || (source_[at_] == '_' && at_ > from))) ++at_;
    return at_ > from;
  };
  const auto plain = [&] {
    std::string text = source_.substr(begin, at_ - begin);
    std::erase(text, '_');
    return text;
  };
  Expression number{Op::number};
  const std::string prefix = source_.substr(at_, 2);
  const int base = prefix == "0x" || prefix == "0X"   ? 16
                   : prefix == "0o" || prefix == "0O" ? 8
                   : prefix == "0b" || prefix == "0B" ? 2
                                                      : 10;
  std::string text;
  if (base != 10) {
    at_ += 2;
    expect(digits([](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; }));
    text = plain().substr(2);
  } else {
    digits(is_digit);
    const bool is_index = begin > 0 && source_[begin - 1] == '.';
    bool is_real = false;
    if (!is_index && at_ + 1 < source_.size() && source_[at_] == '.' && is_digit(source_[at_ + 1])) {
      ++at_;
      is_real = digits(is_digit);
    }
    if (const size_t before = at_; !is_index && (take("e") || take("E"))) {
      if (!take("-")) take("+");
      if (digits(is_digit))
        is_real = true;
      else
        at_ = before;
    }
    text = plain();
    if (is_real) {
      number.op = Op::real;
      const auto read = std::from_chars(text.data(), text.data() + text.size(), number.real);
      return read.ec == std::errc() ? number : Expression{Op::refuse, "a number of this size"};
    }
    if (text.size() > 1 && text[0] == '0' && text.find_first_not_of('0') != text.npos) fail("a number begins with 0");
  }
  if (at_ < source_.size() && is_word(source_[at_])) unexpected();
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number.number, base);
  if (read.ec == std::errc() && read.ptr == text.data() + text.size()) return number;
  if (read.ec != std::errc::result_out_of_range) fail("a number is damaged");
  return {Op::refuse, "a whole number beyond 64 bits"};
}

}  // namespace titan::jinja
