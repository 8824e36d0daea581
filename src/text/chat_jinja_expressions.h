// Parses Jinja's expressions, and the characters that they are made of. Owned by data; the base of the parser in
// chat_jinja_syntax.cpp.
#pragma once

#include <array>
#include <cctype>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat_jinja_syntax.h"

namespace titan::jinja {

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
/// Whether a name or number can hold it.
inline bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

class ExpressionParser {
 public:
  explicit ExpressionParser(std::string_view source);

 protected:
  /// Counts the parser's recursion depth.
  struct Deeper {
    explicit Deeper(ExpressionParser* of);
    ~Deeper() { --parser->depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    ExpressionParser* parser;
  };

  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void unexpected();
  void expect(bool found) {
    if (!found) unexpected();
  }

  // The next characters of the source. Inside a tag, white space is skipped first.

  std::string_view rest();
  bool take(std::string_view text);
  bool ends(std::string_view end);
  /// The operator or bracket that comes next; empty if none does, or the tag's end.
  std::string_view token();
  bool sign(std::string_view text);
  std::string_view next_word();
  bool word(std::string_view text) { return !text.empty() && next_word() == text && take(text); }
  std::string name();
  std::string literal();

  static bool is_constant(std::string_view name);
  Expression joined(Op op, std::string text, std::vector<Expression> parts) const;

  /// One expression, or several with commas: a tuple. Without `choices`: no "a if b else c".
  Expression tuple(bool choices = true);
  Expression expression();
  /// The filters and tests after `first`; `begins`: a filter's name comes first, without |.
  Expression filters(Expression first, bool begins = false);

  std::string source_;
  std::string end_ = {};  // of the current tag
  size_t at_ = 0;
  std::array<bool, 3> mentions_{};  // caller, varargs, kwargs

 private:
  std::string_view character() const;
  Expression either();
  Expression both();
  Expression negation();
  Expression comparison();
  Expression operation(size_t level);
  Expression unary(bool with_filters);
  Expression postfix(Expression first);
  Expression test(Expression first);
  Expression subscript(Expression first);
  Expression bound();
  std::vector<Expression> arguments(Expression first);
  Expression primary();
  // Of chat_jinja_literals.cpp.
  Expression text();
  Expression numeral();
  Expression items(std::string_view end);
  void escape(std::string& text);

  int depth_ = 0, brackets_ = 0;
  std::optional<std::string> refused_ = {};  // by the literal that was read last
};

}  // namespace titan::jinja
