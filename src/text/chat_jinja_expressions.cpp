#include "chat_jinja_expressions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "titan/text/utf8.h"

namespace titan::jinja {
namespace {

// The parser, and what evaluates and frees the tree, call themselves for each level: deeper ones would overflow the
// stack.
constexpr int kDeepest = 300;
constexpr int kDeepestTree = 200;
constexpr size_t kLongest = 1 << 16;  // bytes of a template; the longest of published ones has 20,000

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

/// Jinja reads every line end as \n, and ignores one at the end.
std::string with_line_feeds(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    text.push_back(source[i] == '\r' ? '\n' : source[i]);
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace

ExpressionParser::ExpressionParser(std::string_view source) : source_(with_line_feeds(source)) {
  repair_utf8(source_);
  if (source_.size() > kLongest) fail("a template of this length is not supported");
}

ExpressionParser::Deeper::Deeper(ExpressionParser* of) : parser(of) {
  if (++parser->depth_ > kDeepest) parser->fail("nesting of this depth is not supported");
}

void ExpressionParser::fail(const std::string& what) const {
  const auto end = source_.begin() + static_cast<std::ptrdiff_t>(at_);
  throw TemplateError(fmt::format("line {}: {}", 1 + std::count(source_.begin(), end, '\n'), what),
                      what.ends_with("supported") ? TemplateError::Kind::unsupported : TemplateError::Kind::mistaken);
}

void ExpressionParser::unexpected() {
  fail(rest().empty() ? "the template ends too early" : fmt::format("unexpected \"{}\"", character()));
}

std::string_view ExpressionParser::character() const {
  return std::string_view(source_).substr(at_, utf8_length(static_cast<unsigned char>(source_[at_])));
}

std::string_view ExpressionParser::rest() {
  while (at_ < source_.size() && is_space(source_[at_])) ++at_;
  return std::string_view(source_).substr(at_);
}

bool ExpressionParser::take(std::string_view text) {
  if (!std::string_view(source_).substr(at_).starts_with(text)) return false;
  at_ += text.size();
  return true;
}

bool ExpressionParser::ends(std::string_view end) {
  std::string_view left = rest();
  const bool modified = left.starts_with('-') || (left.starts_with('+') && end == "%}");
  return left.substr(modified ? 1 : 0).starts_with(end);
}

std::string_view ExpressionParser::token() {
  const std::string_view left = rest();
  if (left.empty() || (brackets_ == 0 && !end_.empty() && ends(end_))) return {};
  for (const char* each : {"**", "//", "==", "!=", "<=", ">="}) {
    if (left.starts_with(each)) return left.substr(0, 2);
  }
  return left.substr(0, std::string_view("+-*/%~<>=.,:|()[]{}").find(left[0]) == std::string_view::npos ? 0 : 1);
}

bool ExpressionParser::sign(std::string_view text) {
  if (token() != text) return false;
  at_ += text.size();
  return true;
}

std::string_view ExpressionParser::next_word() {
  const std::string_view left = rest();
  return left.substr(0, static_cast<size_t>(std::find_if_not(left.begin(), left.end(), is_word) - left.begin()));
}

std::string ExpressionParser::name() {
  std::string found(next_word());
  expect(!found.empty() && !is_digit(found[0]));
  at_ += found.size();
  return found;
}

bool ExpressionParser::is_constant(std::string_view name) {
  for (const char* each : {"true", "false", "none", "True", "False", "None"}) {
    if (name == each) return true;
  }
  return false;
}

Expression ExpressionParser::joined(Op op, std::string text, std::vector<Expression> parts) const {
  Expression whole{.op = op, .text = std::move(text), .parts = std::move(parts)};
  for (const Expression& part : whole.parts) whole.depth = std::max(whole.depth, part.depth + 1);
  if (whole.depth > kDeepestTree) fail("nesting of this depth is not supported");
  return whole;
}

// Expressions, from those that bind least.

Expression ExpressionParser::tuple(bool choices) {
  const auto one = [&] { return choices ? expression() : either(); };
  const auto ended = [&] {
    return (brackets_ == 0 && ends(end_)) || rest().starts_with(')') || next_word() == "in" ||
           next_word() == "recursive";
  };
  std::vector<Expression> all{one()};
  bool comma = false;
  while (sign(",")) {
    comma = true;
    if (ended()) break;
    all.push_back(one());
  }
  return comma ? joined(Op::tuple, "", std::move(all)) : std::move(all[0]);
}

Expression ExpressionParser::expression() {
  const Deeper deeper(this);
  Expression first = either();
  while (word("if")) {
    Expression condition = either();
    Expression otherwise = word("else") ? expression() : Expression{Op::name};
    first = joined(Op::choice, "", {std::move(condition), std::move(first), std::move(otherwise)});
  }
  return first;
}

Expression ExpressionParser::either() {
  Expression first = both();
  while (word("or")) first = joined(Op::logic, "or", {std::move(first), both()});
  return first;
}

Expression ExpressionParser::both() {
  Expression first = negation();
  while (word("and")) first = joined(Op::logic, "and", {std::move(first), negation()});
  return first;
}

Expression ExpressionParser::negation() {
  const Deeper deeper(this);
  return word("not") ? joined(Op::negate, "", {negation()}) : comparison();
}

Expression ExpressionParser::comparison() {
  std::vector<Expression> parts{operation(0)};
  for (;;) {
    std::string found(token());
    if (found == "==" || found == "!=" || found == "<" || found == ">" || found == "<=" || found == ">=") {
      sign(found);
    } else if (word("in")) {
      found = "in";
    } else if (const size_t before = at_; word("not")) {
      if (!word("in")) {
        at_ = before;
        break;
      }
      found = "not in";
    } else {
      break;
    }
    parts.push_back(joined(Op::binary, found, {operation(0)}));
  }
  return parts.size() == 1 ? std::move(parts[0]) : joined(Op::compare, "", std::move(parts));
}

/// The operators of each level, all read from left to right (Jinja's ** as well).
Expression ExpressionParser::operation(size_t level) {
  static const std::vector<std::vector<std::string>> kLevels{{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};
  if (level == kLevels.size()) return unary(/*with_filters=*/true);
  Expression first = operation(level + 1);
  for (;;) {
    const std::string found(token());
    if (std::find(kLevels[level].begin(), kLevels[level].end(), found) == kLevels[level].end()) return first;
    sign(found);
    first = joined(Op::binary, found, {std::move(first), operation(level + 1)});
  }
}

Expression ExpressionParser::unary(bool with_filters) {
  const Deeper deeper(this);
  Expression first;
  if (sign("-")) {
    first = joined(Op::minus, "", {unary(false)});
  } else if (sign("+")) {
    first = joined(Op::plus, "", {unary(false)});
  } else {
    first = primary();
  }
  first = postfix(std::move(first));
  return with_filters ? filters(std::move(first)) : std::move(first);
}

Expression ExpressionParser::postfix(Expression first) {
  for (;;) {
    if (sign(".")) {
      const std::string_view next = next_word();
      if (!next.empty() && is_digit(next[0])) {
        first = joined(Op::member, "", {std::move(first), numeral()});
      } else {
        first = joined(Op::attribute, name(), {std::move(first)});
      }
    } else if (token() == "[") {
      first = subscript(std::move(first));
    } else if (token() == "(") {
      first = joined(Op::call, "", arguments(std::move(first)));
    } else {
      return first;
    }
  }
}

Expression ExpressionParser::filters(Expression first, bool begins) {
  for (;; begins = false) {
    if (begins || sign("|")) {
      std::string what = name();
      while (sign(".")) what += "." + name();
      std::vector<Expression> parts{std::move(first)};
      if (token() == "(") parts = arguments(std::move(parts[0]));
      first = joined(Op::filter, what, std::move(parts));
    } else if (word("is")) {
      first = test(std::move(first));
    } else if (token() == "(" && first.op != Op::block) {
      first = joined(Op::call, "", arguments(std::move(first)));
    } else {
      return first;
    }
  }
}

Expression ExpressionParser::test(Expression first) {
  const bool negates = word("not");
  std::string what = name();
  while (sign(".")) what += "." + name();
  std::vector<Expression> parts{std::move(first)};
  const std::string_view next = rest(), following = next_word();
  const bool is_end = brackets_ == 0 && ends(end_);
  if (token() == "(") {
    parts = arguments(std::move(parts[0]));
  } else if (!is_end &&
             (next.starts_with('\'') || next.starts_with('"') || next.starts_with('[') || next.starts_with('{') ||
              !following.empty()) &&
             following != "else" && following != "or" && following != "and") {
    // As in Jinja, which reads any word as an argument; a word that cannot be a name ends the parse.
    if (following == "is") fail("several tests cannot follow each other");
    parts.push_back(postfix(primary()));
  }
  first = joined(Op::test, what, std::move(parts));
  return negates ? joined(Op::negate, "", {std::move(first)}) : std::move(first);
}

/// A bound of a slice, if there is one.
Expression ExpressionParser::bound() {
  const std::string_view next = token();
  return next == ":" || next == "]" || next == "," ? Expression{Op::name, "none"} : expression();
}

Expression ExpressionParser::subscript(Expression first) {
  expect(sign("["));
  ++brackets_;
  std::vector<Expression> keys;
  std::vector<Expression> slice;
  bool several = false;
  do {
    if (!keys.empty() && token() == "]") break;
    const bool is_empty = token() == "]";
    std::vector<Expression> bounds{bound()};
    while (bounds.size() < 3 && sign(":")) bounds.push_back(bound());
    if (bounds.size() == 1) {
      expect(!is_empty);
      keys.push_back(std::move(bounds[0]));
    } else {
      bounds.resize(3, Expression{Op::name, "none"});
      keys.push_back({Op::refuse, "a slice among other indices"});
      slice = std::move(bounds);
    }
  } while (sign(",") && (several = true));
  --brackets_;
  expect(sign("]"));
  if (!several && !slice.empty()) {
    slice.insert(slice.begin(), std::move(first));
    return joined(Op::slice, "", std::move(slice));
  }
  Expression key = several ? joined(Op::tuple, "", std::move(keys)) : std::move(keys[0]);
  return joined(Op::member, "", {std::move(first), std::move(key)});
}

/// Parses arguments after their operand.
std::vector<Expression> ExpressionParser::arguments(Expression first) {
  expect(sign("("));
  ++brackets_;
  std::vector<Expression> parts{std::move(first)};
  while (token() != ")") {
    if (parts.size() > 1) expect(sign(","));
    if (token() == ")") break;
    if (sign("**")) {
      parts.push_back(joined(Op::spread_named, "", {expression()}));
      continue;
    }
    if (sign("*")) {
      parts.push_back(joined(Op::spread, "", {expression()}));
      continue;
    }
    const size_t before = at_;
    const std::string key(next_word());
    at_ += key.size();
    if (!key.empty() && !is_digit(key[0]) && sign("=")) {
      parts.push_back(joined(Op::keyword, key, {expression()}));
      continue;
    }
    at_ = before;
    const Op last = parts.size() > 1 ? parts.back().op : Op::text;
    if (last == Op::keyword || last == Op::spread_named) fail("an argument follows one with a name");
    parts.push_back(expression());
  }
  --brackets_;
  expect(sign(")"));
  return parts;
}

Expression ExpressionParser::primary() {
  const std::string_view left = rest();
  if (left.starts_with('\'') || left.starts_with('"')) return text();
  const std::string_view next = next_word();
  if (!next.empty() && is_digit(next[0])) return numeral();
  for (const char* end : {")", "]", "}"}) {
    if (sign(*end == ')' ? "(" : *end == ']' ? "[" : "{")) return items(end);
  }
  Expression found{Op::name, name()};
  static constexpr std::array<std::string_view, 3> kOwn{"caller", "varargs", "kwargs"};
  for (size_t i = 0; i < kOwn.size(); ++i) mentions_[i] = mentions_[i] || found.text == kOwn[i];
  for (const char* word : {"if", "else", "elif", "in", "and", "or", "not", "is"}) {
    if (found.text == word) fail(fmt::format("unexpected \"{}\"", word));
  }
  return found;
}

/// Parses the items of a list, a tuple, a dictionary or parentheses.
Expression ExpressionParser::items(std::string_view end) {
  ++brackets_;
  std::vector<Expression> items;
  bool comma = false;
  while (token() != end) {
    if (!items.empty()) {
      expect(sign(","));
      comma = true;
      if (token() == end) break;
    }
    items.push_back(expression());
    if (end != "}") continue;
    expect(sign(":"));
    items.push_back(expression());
  }
  --brackets_;
  expect(take(end));
  if (end == ")" && !comma && items.size() == 1) return std::move(items[0]);
  return joined(end == "}" ? Op::object : end == ")" ? Op::tuple : Op::list, "", std::move(items));
}

}  // namespace titan::jinja
