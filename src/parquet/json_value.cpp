#include "json_value.h"

#include <string>

namespace titan {
namespace {

/// Moves over one value, without calling itself: the depth of a stranger's text is not bounded.
class JsonScan {
 public:
  explicit JsonScan(std::string_view text) : text_(text) {}

  bool run() {
    bool wants_value = true;  // else a value has just ended
    while (true) {
      skip_blanks();
      if (wants_value) {
        const char first = next();
        if (first == '{' || first == '[') {
          ++at_;
          open_ += first;
          skip_blanks();
          wants_value = next() != closing(first);
          if (wants_value && first == '{' && !take_key()) return false;
        } else if (take_scalar()) {
          wants_value = false;
        } else {
          return false;
        }
      } else if (open_.empty()) {
        return at_ == text_.size();
      } else if (take(',')) {
        if (open_.back() == '{' && !take_key()) return false;
        wants_value = true;
      } else if (take(closing(open_.back()))) {
        open_.pop_back();
      } else {
        return false;
      }
    }
  }

  size_t at() const { return at_; }

 private:
  static char closing(char bracket) { return bracket == '{' ? '}' : ']'; }
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_hex(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

  /// NUL, which begins nothing, at the end.
  char next() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char wanted) {
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void skip_blanks() {
    while (next() == ' ' || next() == '\t' || next() == '\n' || next() == '\r') ++at_;
  }

  bool take_key() {
    skip_blanks();
    if (!take_string()) return false;
    skip_blanks();
    return take(':');
  }

  bool take_string() {
    if (!take('"')) return false;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (static_cast<unsigned char>(c) < 0x20) return false;
      if (c == '"') return ++at_, true;
      if (c == '\\' && !take_escape()) return false;
    }
    return false;
  }

  /// From the backslash to the last byte of the escape.
  bool take_escape() {
    ++at_;
    if (next() != 'u') return next() != '\0' && std::string_view("\"\\/bfnrt").find(next()) != std::string_view::npos;
    for (int digit = 0; digit < 4; ++digit) {
      ++at_;
      if (!is_hex(next())) return false;
    }
    return true;
  }

  bool take_scalar() {
    if (next() == '"') return take_string();
    for (const std::string_view word : {"true", "false", "null", "NaN", "Infinity", "-Infinity"}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return true;
    }
    take('-');
    if (!take('0') && !take_digits()) return false;
    if (take('.') && !take_digits()) return false;
    if (!take('e') && !take('E')) return true;
    if (!take('+')) take('-');
    return take_digits();
  }

  bool take_digits() {
    if (!is_digit(next())) return false;
    while (is_digit(next())) ++at_;
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string open_;  // the brackets that are not closed yet
};

}  // namespace

bool is_json_value(std::string_view text, size_t& failed_at) {
  JsonScan scan(text);
  const bool is_value = scan.run();
  failed_at = scan.at();
  return is_value;
}

}  // namespace titan
