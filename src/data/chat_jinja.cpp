#include "chat_jinja.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <map>
#include <utility>

#include "titan/data/utf8.h"

namespace titan {
namespace jinja {  // names that others in a unity build may have
namespace {

/// What is not known here, or a text that is looked into.
struct Unknown {};

constexpr int kDeepest = 100;
constexpr size_t kMostTokens = 4000;
constexpr int kMostSteps = 100'000;
constexpr size_t kLongestText = 1 << 20;

// Tokens.

enum class TokenKind { data, begin, end, name, text, number, sign };

struct Token {
  TokenKind kind = TokenKind::end;
  std::string text = {};  // of begin and end: {{ or {%

  bool operator==(const Token&) const = default;
};

class Lexer {
 public:
  explicit Lexer(std::string_view source) : rest_(source) {
    if (source.find('\r') != source.npos) throw Unknown();
    if (rest_.ends_with('\n')) rest_.remove_suffix(1);
    while (!rest_.empty() && tokens.size() <= kMostTokens) next_tag();
    if (tokens.size() > kMostTokens) throw Unknown();
  }

  std::vector<Token> tokens = {};

 private:
  /// As with trim_blocks and lstrip_blocks, which `transformers` sets.
  void next_tag() {
    size_t at = 0;
    const auto begins = [&] {
      const std::string_view two = rest_.substr(at, 2);
      return two == "{{" || two == "{%" || two == "{#";
    };
    while (at < rest_.size() && !begins()) ++at;
    std::string_view data = rest_.substr(0, at);
    if (at == rest_.size()) {
      add_data(data);
      rest_ = {};
      return;
    }
    const std::string tag(rest_.substr(at, 2));
    rest_.remove_prefix(at + 2);
    if (rest_.starts_with('+')) throw Unknown();
    if (rest_.starts_with('-')) {
      rest_.remove_prefix(1);
      while (!data.empty() && is_space(data.back())) data.remove_suffix(1);
    } else if (tag != "{{") {
      const size_t line = data.rfind('\n') + 1;
      const bool blank = std::all_of(data.begin() + static_cast<std::ptrdiff_t>(line), data.end(), is_space);
      if (blank && (line > 0 || at_line_start_)) data = data.substr(0, line);
    }
    add_data(data);
    if (tag == "{#") {
      const size_t end = rest_.find("#}");
      if (end == rest_.npos) throw Unknown();
      const bool strips = end > 0 && rest_[end - 1] == '-';
      rest_.remove_prefix(end + 2);
      after_tag(strips, true);
      return;
    }
    tokens.push_back({TokenKind::begin, tag});
    inside(tag == "{{" ? "}}" : "%}");
    tokens.push_back({TokenKind::end, tag});
  }

  void inside(std::string_view end) {
    for (;;) {
      while (!rest_.empty() && is_space(rest_[0])) rest_.remove_prefix(1);
      if (rest_.empty()) throw Unknown();
      const bool strips = rest_[0] == '-' && rest_.substr(1).starts_with(end);
      if (strips || rest_.starts_with(end)) {
        rest_.remove_prefix(end.size() + (strips ? 1 : 0));
        return after_tag(strips, end == "%}");
      }
      const char c = rest_[0];
      if (c == '\'' || c == '"') {
        add_text(c);
      } else if (is_word(c)) {
        size_t length = 1;
        while (length < rest_.size() && is_word(rest_[length])) ++length;
        add(std::isdigit(static_cast<unsigned char>(c)) != 0 ? TokenKind::number : TokenKind::name, length);
      } else {
        const std::string_view two = rest_.substr(0, 2);
        const bool pair = two == "==" || two == "!=" || two == "<=" || two == ">=";
        if (!pair && std::string_view("()[].,:|+-~%=<>").find(c) == std::string_view::npos) throw Unknown();
        add(TokenKind::sign, pair ? 2 : 1);
      }
    }
  }

  void add_text(char quote) {
    std::string text;
    size_t at = 1;
    for (; at < rest_.size() && rest_[at] != quote; ++at) {
      char c = rest_[at];
      if (c == '\\') {
        c = ++at < rest_.size() ? rest_[at] : '\0';
        if (c != 'n' && c != '\\' && c != '\'' && c != '"') throw Unknown();
        if (c == 'n') c = '\n';
      }
      text.push_back(c);
    }
    if (at >= rest_.size()) throw Unknown();
    rest_.remove_prefix(at + 1);
    tokens.push_back({TokenKind::text, text});
  }

  void add(TokenKind kind, size_t length) {
    tokens.push_back({kind, std::string(rest_.substr(0, length))});
    rest_.remove_prefix(length);
  }

  void add_data(std::string_view data) {
    if (!data.empty()) tokens.push_back({TokenKind::data, std::string(data)});
  }

  void after_tag(bool strips, bool trims) {
    at_line_start_ = false;
    if (strips) {
      while (!rest_.empty() && is_space(rest_[0])) rest_.remove_prefix(1);
    } else if (trims && rest_.starts_with('\n')) {
      rest_.remove_prefix(1);
      at_line_start_ = true;
    }
  }

  static bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
  static bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

  std::string_view rest_;
  bool at_line_start_ = true;
};

// Expressions and statements.

enum class Op { text, number, name, list, member, slice, call, filter, test, choice, negate, either, both, binary };

struct Expression {
  Op op = Op::text;
  std::string text = {};  // a literal, a name, or the sign of a binary operation
  int64_t number = 0;
  std::vector<Expression> parts = {};
  bool given = true;  // false: a bound of a slice that is left out
};

enum class Do { data, output, branch, loop, set, macro, block };

struct Statement {
  Do what = Do::data;
  std::string text = {};                // data, or the name that is set
  std::vector<std::string> names = {};  // a loop's targets, a macro's parameters
  Expression value = {};
  std::vector<Statement> body = {}, otherwise = {};
};

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  std::vector<Statement> all() {
    std::vector<Statement> statements = body();
    if (at_ != tokens_.size()) throw Unknown();
    return statements;
  }

 private:
  class Deeper {
   public:
    explicit Deeper(int& depth) : depth_(depth) {
      if (++depth_ > kDeepest) throw Unknown();
    }
    ~Deeper() { --depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    int& depth_;
  };

  const Token& peek(size_t more = 0) const {
    static const Token kNone{TokenKind::end, ""};
    return at_ + more < tokens_.size() ? tokens_[at_ + more] : kNone;
  }
  bool is(TokenKind kind, std::string_view text, size_t more = 0) const {
    return peek(more).kind == kind && peek(more).text == text;
  }
  bool take(TokenKind kind, std::string_view text) {
    if (!is(kind, text)) return false;
    ++at_;
    return true;
  }
  bool sign(std::string_view text) { return take(TokenKind::sign, text); }
  bool word(std::string_view text) { return take(TokenKind::name, text); }
  void expect(bool found) const {
    if (!found) throw Unknown();
  }
  std::string any(TokenKind kind) {
    expect(peek().kind == kind && at_ < tokens_.size());
    return tokens_[at_++].text;
  }
  void end_tag() { expect(take(TokenKind::end, "{%")); }
  bool tag(std::string_view name) {
    if (!is(TokenKind::begin, "{%") || !is(TokenKind::name, name, 1)) return false;
    at_ += 2;
    return true;
  }
  void close(std::string_view name) {
    expect(tag(name));
    end_tag();
  }

  /// Up to a tag that is none of its own.
  std::vector<Statement> body() {
    const Deeper deeper(depth_);
    std::vector<Statement> statements;
    while (at_ < tokens_.size()) {
      Statement one;
      if (peek().kind == TokenKind::data) {
        one.text = any(TokenKind::data);
      } else if (take(TokenKind::begin, "{{")) {
        one.what = Do::output;
        one.value = expression();
        expect(take(TokenKind::end, "{{"));
      } else if (tag("if")) {
        one = branch();
      } else if (tag("for")) {
        one = loop();
      } else if (tag("set")) {
        one.what = Do::set;
        one.text = any(TokenKind::name);
        expect(sign("="));
        one.value = expression();
        end_tag();
      } else if (tag("macro")) {
        one.what = Do::macro;
        one.text = any(TokenKind::name);
        expect(sign("("));
        while (!sign(")")) {
          if (!one.names.empty()) expect(sign(","));
          one.names.push_back(any(TokenKind::name));
        }
        end_tag();
        one.body = body();
        close("endmacro");
      } else if (tag("generation")) {
        end_tag();
        one.what = Do::block;
        one.body = body();
        close("endgeneration");
      } else {
        break;
      }
      statements.push_back(std::move(one));
    }
    return statements;
  }

  Statement branch() {
    const Deeper deeper(depth_);
    Statement one;
    one.what = Do::branch;
    one.value = expression();
    end_tag();
    one.body = body();
    if (tag("elif")) {
      one.otherwise.push_back(branch());
      return one;
    }
    if (tag("else")) {
      end_tag();
      one.otherwise = body();
    }
    close("endif");
    return one;
  }

  Statement loop() {
    Statement one;
    one.what = Do::loop;
    do one.names.push_back(any(TokenKind::name));
    while (sign(","));
    expect(word("in"));
    one.value = either();
    end_tag();
    one.body = body();
    close("endfor");
    return one;
  }

  static Expression joined(Op op, std::string text, std::vector<Expression> parts) {
    return {op, std::move(text), 0, std::move(parts)};
  }

  Expression expression() {
    const Deeper deeper(depth_);
    Expression first = either();
    while (word("if")) {
      Expression condition = either();
      expect(word("else"));
      first = joined(Op::choice, "", {std::move(condition), std::move(first), expression()});
    }
    return first;
  }
  Expression either() {
    const Deeper deeper(depth_);
    Expression first = both();
    while (word("or")) first = joined(Op::either, "", {std::move(first), both()});
    return first;
  }
  Expression both() {
    Expression first = negated();
    while (word("and")) first = joined(Op::both, "", {std::move(first), negated()});
    return first;
  }
  Expression negated() {
    const Deeper deeper(depth_);
    if (word("not")) return joined(Op::negate, "", {negated()});
    return compared();
  }
  Expression compared() {
    Expression first = sum();
    for (const char* each : {"==", "!=", "<", ">", "<=", ">="}) {
      if (sign(each)) return joined(Op::binary, each, {std::move(first), sum()});
    }
    if (word("in")) return joined(Op::binary, "in", {std::move(first), sum()});
    if (is(TokenKind::name, "not") && is(TokenKind::name, "in", 1)) {
      at_ += 2;
      return joined(Op::negate, "", {joined(Op::binary, "in", {std::move(first), sum()})});
    }
    return first;
  }
  Expression sum() {
    Expression first = concatenation();
    for (;;) {
      const std::string text = peek().text;
      if (!sign("+") && !sign("-")) return first;
      first = joined(Op::binary, text, {std::move(first), concatenation()});
    }
  }
  Expression concatenation() {
    Expression first = remainder();
    while (sign("~")) first = joined(Op::binary, "~", {std::move(first), remainder()});
    return first;
  }
  Expression remainder() {
    Expression first = with_filters();
    while (sign("%")) first = joined(Op::binary, "%", {std::move(first), with_filters()});
    return first;
  }

  Expression with_filters() {
    const Deeper deeper(depth_);
    if (sign("-")) return joined(Op::binary, "-", {Expression{Op::number}, with_filters()});
    Expression first = primary();
    for (;;) {
      if (sign(".")) {
        first = joined(Op::member, "", {std::move(first), Expression{Op::text, any(TokenKind::name)}});
      } else if (sign("[")) {
        first = subscript(std::move(first));
      } else if (sign("(")) {
        first = joined(Op::call, "", arguments(std::move(first)));
      } else {
        break;
      }
    }
    for (;;) {
      if (sign("|")) {
        const std::string name = any(TokenKind::name);
        std::vector<Expression> parts{std::move(first)};
        if (sign("(")) parts = arguments(std::move(parts[0]));
        first = joined(Op::filter, name, std::move(parts));
      } else if (word("is")) {
        const bool negates = word("not");
        const std::string name = any(TokenKind::name);
        first = joined(Op::test, name, {std::move(first)});
        if (negates) first = joined(Op::negate, "", {std::move(first)});
      } else {
        return first;
      }
    }
  }

  Expression subscript(Expression first) {
    const auto bound = [&] {
      if (is(TokenKind::sign, ":") || is(TokenKind::sign, "]")) return Expression{Op::number, "", 0, {}, false};
      return expression();
    };
    Expression from = bound();
    if (!sign(":")) {
      expect(from.given && sign("]"));
      return joined(Op::member, "", {std::move(first), std::move(from)});
    }
    Expression to = bound();
    expect(sign("]"));
    return joined(Op::slice, "", {std::move(first), std::move(from), std::move(to)});
  }

  /// After what they are of. Nothing that is known here has some with keywords.
  std::vector<Expression> arguments(Expression first) {
    std::vector<Expression> parts{std::move(first)};
    while (!sign(")")) {
      if (parts.size() > 1) expect(sign(","));
      const bool keyword = peek().kind == TokenKind::name && is(TokenKind::sign, "=", 1);
      if (keyword) at_ += 2;
      parts.push_back(keyword ? joined(Op::test, "keyword", {expression()}) : expression());
    }
    return parts;
  }

  Expression primary() {
    const Token token = peek();
    expect(at_ < tokens_.size());
    ++at_;
    if (token.kind == TokenKind::text) {
      std::string text = token.text;
      while (peek().kind == TokenKind::text) text += any(TokenKind::text);
      return {Op::text, std::move(text)};
    }
    if (token.kind == TokenKind::name) return {Op::name, token.text};
    if (token.kind == TokenKind::number) {
      Expression number{Op::number};
      const char* const end = token.text.data() + token.text.size();
      const auto read = std::from_chars(token.text.data(), end, number.number);
      expect(read.ec == std::errc() && read.ptr == end && number.number < 1'000'000);
      return number;
    }
    const bool list = token == Token{TokenKind::sign, "["};
    expect(list || token == Token{TokenKind::sign, "("});
    const char* const end = list ? "]" : ")";
    std::vector<Expression> items;
    bool comma = false;
    while (!sign(end)) {
      if (!items.empty()) {
        expect(sign(","));
        comma = true;
        if (sign(end)) break;
      }
      items.push_back(expression());
    }
    if (!list && !comma && items.size() == 1) return std::move(items[0]);
    return joined(Op::list, "", std::move(items));
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

// Running.

enum class Kind { undefined, none, boolean, number, text, list, object, macro };

struct Value {
  Kind kind = Kind::undefined;
  int64_t number = 0;  // or a boolean
  std::string text = {};
  bool opaque = false;  // a text of a message or a special token: to be written, not to be looked into
  std::vector<Value> items = {};
  std::map<std::string, Value> members = {};
  bool complete = true;  // of an object: what it lacks is undefined
  const Statement* macro = nullptr;
};

Value boolean(bool value) { return {Kind::boolean, value ? 1 : 0}; }
Value number(int64_t value) { return {Kind::number, value}; }
Value text_value(std::string text, bool opaque = false) { return {Kind::text, 0, std::move(text), opaque}; }

using Names = std::map<std::string, Value>;

class Run {
 public:
  explicit Run(Names names) { frames_.push_back(std::move(names)); }

  void all(const std::vector<Statement>& statements) {
    for (const Statement& statement : statements) one(statement);
  }

  std::string text = {};

 private:
  void step() {
    if (++steps_ > kMostSteps) throw Unknown();
  }

  void write(const std::string& more) {
    if (text.size() + more.size() > kLongestText) throw Unknown();
    text += more;
  }

  void one(const Statement& statement) {
    step();
    switch (statement.what) {
      case Do::data:
        return write(statement.text);
      case Do::output: {
        const Value value = evaluate(statement.value);
        if (value.kind == Kind::undefined) return;
        return write(as_text(value));
      }
      case Do::branch:
        return all(truth(evaluate(statement.value)) ? statement.body : statement.otherwise);
      case Do::set:
        frames_.back()[statement.text] = evaluate(statement.value);
        return;
      case Do::macro:
        frames_.back()[statement.text] = {Kind::macro, 0, "", false, {}, {}, true, &statement};
        return;
      case Do::block:
        frames_.emplace_back();
        all(statement.body);
        frames_.pop_back();
        return;
      case Do::loop:
        return loop(statement);
    }
  }

  void loop(const Statement& statement) {
    const Value over = evaluate(statement.value);
    if (over.kind != Kind::list || statement.names.size() != 1) throw Unknown();
    const int64_t count = std::ssize(over.items);
    for (int64_t i = 0; i < count; ++i) {
      Value state{Kind::object};
      state.complete = false;
      state.members = {{"index0", number(i)},
                       {"index", number(i + 1)},
                       {"first", boolean(i == 0)},
                       {"last", boolean(i + 1 == count)},
                       {"length", number(count)}};
      frames_.push_back({{"loop", std::move(state)}});
      frames_.back()[statement.names[0]] = over.items[static_cast<size_t>(i)];
      all(statement.body);
      frames_.pop_back();
    }
  }

  Value name(const std::string& name) const {
    if (name == "true" || name == "True") return boolean(true);
    if (name == "false" || name == "False") return boolean(false);
    if (name == "none" || name == "None") return {Kind::none};
    for (auto frame = frames_.rbegin(); frame != frames_.rend(); ++frame) {
      const auto found = frame->find(name);
      if (found != frame->end()) return found->second;
    }
    constexpr std::array kFunctions{"namespace", "range", "dict", "lipsum", "cycler", "joiner", "raise_exception"};
    if (std::find(kFunctions.begin(), kFunctions.end(), name) != kFunctions.end()) throw Unknown();
    return {};
  }

  static bool truth(const Value& value) {
    if (value.opaque) throw Unknown();
    switch (value.kind) {
      case Kind::undefined:
      case Kind::none:
        return false;
      case Kind::boolean:
      case Kind::number:
        return value.number != 0;
      case Kind::text:
        return !value.text.empty();
      case Kind::list:
        return !value.items.empty();
      case Kind::object:
      case Kind::macro:
        return true;
    }
    return true;
  }

  static const std::string& as_text(const Value& value) {
    if (value.kind != Kind::text) throw Unknown();
    return value.text;
  }
  static int64_t as_number(const Value& value) {
    if (value.kind != Kind::number) throw Unknown();
    return value.number;
  }

  static bool equal(const Value& a, const Value& b) {
    const auto simple = [](const Value& value) {
      return value.kind != Kind::list && value.kind != Kind::object && value.kind != Kind::macro;
    };
    if (!simple(a) || !simple(b)) throw Unknown();
    if (a.kind != b.kind) {
      const auto counts = [](const Value& value) { return value.kind == Kind::boolean || value.kind == Kind::number; };
      if (counts(a) && counts(b)) throw Unknown();
      return false;
    }
    if (a.kind == Kind::text) {
      if (a.opaque || b.opaque) throw Unknown();
      return a.text == b.text;
    }
    return a.number == b.number;
  }

  static bool contains(const Value& all, const Value& item) {
    if (all.kind == Kind::list) {
      return std::any_of(all.items.begin(), all.items.end(), [&](const Value& each) { return equal(each, item); });
    }
    if (item.opaque || all.opaque) throw Unknown();
    if (all.kind == Kind::object && all.complete) return all.members.contains(as_text(item));
    return as_text(all).find(as_text(item)) != std::string::npos;
  }

  Value binary(const std::string& sign, const Value& a, const Value& b) const {
    if (sign == "==") return boolean(equal(a, b));
    if (sign == "!=") return boolean(!equal(a, b));
    if (sign == "in") return boolean(contains(b, a));
    if (sign == "~" || (sign == "+" && a.kind == Kind::text)) {
      if (as_text(a).size() + as_text(b).size() > kLongestText) throw Unknown();
      return text_value(a.text + b.text, a.opaque || b.opaque);
    }
    const int64_t left = as_number(a), right = as_number(b);
    if (sign == "+") return number(left + right);
    if (sign == "-") return number(left - right);
    if (sign == "<") return boolean(left < right);
    if (sign == ">") return boolean(left > right);
    if (sign == "<=") return boolean(left <= right);
    if (sign == ">=") return boolean(left >= right);
    if (sign != "%" || right <= 0 || left < 0) throw Unknown();
    return number(left % right);
  }

  static Value member(const Value& of, const Value& key) {
    if (of.kind == Kind::object) {
      if (key.opaque) throw Unknown();
      const auto found = of.members.find(as_text(key));
      if (found != of.members.end()) return found->second;
      if (!of.complete) throw Unknown();
      return {};
    }
    if (of.kind != Kind::list) throw Unknown();
    const int64_t count = std::ssize(of.items);
    int64_t at = as_number(key);
    if (at < 0) at += count;
    if (at < 0 || at >= count) return {};
    return of.items[static_cast<size_t>(at)];
  }

  Value slice(const Expression& expression) {
    const Value of = evaluate(expression.parts[0]);
    if (of.kind != Kind::list) throw Unknown();
    const int64_t count = std::ssize(of.items);
    const auto bound = [&](const Expression& part, int64_t otherwise) {
      if (!part.given) return otherwise;
      const int64_t at = as_number(evaluate(part));
      return std::clamp<int64_t>(at < 0 ? at + count : at, 0, count);
    };
    const int64_t from = bound(expression.parts[1], 0), to = bound(expression.parts[2], count);
    Value part{Kind::list};
    if (from < to) part.items.assign(of.items.begin() + from, of.items.begin() + to);
    return part;
  }

  Value stripped(const Value& value) const {
    return text_value(std::string(strip_white_space(as_text(value))), value.opaque);
  }

  Value call(const Expression& expression) {
    const Expression& function = expression.parts[0];
    if (function.op == Op::member && function.parts[1].op == Op::text && function.parts[1].text == "strip") {
      if (expression.parts.size() != 1) throw Unknown();
      return stripped(evaluate(function.parts[0]));
    }
    const Value called = evaluate(function);
    if (called.kind != Kind::macro || called.macro->names.size() + 1 != expression.parts.size()) throw Unknown();
    if (++depth_ > 10) throw Unknown();
    Names arguments;
    for (size_t i = 1; i < expression.parts.size(); ++i) {
      arguments[called.macro->names[i - 1]] = evaluate(expression.parts[i]);
    }
    std::vector<Names> outer = std::exchange(frames_, {frames_[0]});
    std::string written = std::exchange(text, {});
    frames_.push_back(std::move(arguments));
    all(called.macro->body);
    std::swap(text, written);
    frames_ = std::move(outer);
    --depth_;
    return text_value(std::move(written), true);
  }

  static bool test(const std::string& name, const Value& value) {
    const Kind kind = value.kind;
    if (name == "defined") return kind != Kind::undefined;
    if (name == "undefined") return kind == Kind::undefined;
    if (name == "none") return kind == Kind::none;
    if (name == "string") return kind == Kind::text;
    if (name == "mapping") return kind == Kind::object;
    if (name == "iterable") return kind == Kind::text || kind == Kind::list || kind == Kind::object;
    throw Unknown();
  }

  Value evaluate(const Expression& expression) {
    step();
    if (++nested_ > 2 * kDeepest) throw Unknown();
    Value value = evaluate_nested(expression);
    --nested_;
    return value;
  }

  Value evaluate_nested(const Expression& expression) {
    const auto part = [&](size_t i) { return evaluate(expression.parts[i]); };
    switch (expression.op) {
      case Op::text:
        return text_value(expression.text);
      case Op::number:
        return number(expression.number);
      case Op::name:
        return name(expression.text);
      case Op::list: {
        Value list{Kind::list};
        for (const Expression& item : expression.parts) list.items.push_back(evaluate(item));
        return list;
      }
      case Op::member:
        return member(part(0), part(1));
      case Op::slice:
        return slice(expression);
      case Op::call:
        return call(expression);
      case Op::filter: {
        const Value value = part(0);
        if (expression.parts.size() != 1) throw Unknown();
        if (expression.text == "trim") return stripped(value);
        if (expression.text == "length" && value.kind == Kind::list) return number(std::ssize(value.items));
        throw Unknown();
      }
      case Op::test:
        return boolean(test(expression.text, part(0)));
      case Op::choice:
        return truth(part(0)) ? part(1) : part(2);
      case Op::negate:
        return boolean(!truth(part(0)));
      case Op::either: {
        Value first = part(0);
        return truth(first) ? first : part(1);
      }
      case Op::both: {
        Value first = part(0);
        return truth(first) ? part(1) : first;
      }
      case Op::binary:
        return binary(expression.text, part(0), part(1));
    }
    throw Unknown();
  }

  std::vector<Names> frames_;
  int steps_ = 0, depth_ = 0, nested_ = 0;
};

}  // namespace
}  // namespace jinja

std::string_view strip_white_space(std::string_view text) {
  const auto is_space = [&](size_t at) {
    const char32_t c = first_code_point(text.substr(at));
    return is_white_space(c) || (c >= 0x1C && c <= 0x1F);
  };
  while (!text.empty() && is_space(0)) text.remove_prefix(utf8_length(static_cast<unsigned char>(text[0])));
  while (!text.empty()) {
    const size_t last = previous_character(text, text.size());
    if (!is_space(last)) break;
    text = text.substr(0, last);
  }
  return text;
}

struct ChatJinja::Parsed {
  std::vector<jinja::Statement> statements;
  std::vector<std::string> literals;
};

std::optional<ChatJinja> ChatJinja::parse(std::string_view source) {
  try {
    auto parsed = std::make_shared<Parsed>();
    std::vector<jinja::Token> tokens = jinja::Lexer(source).tokens;
    for (const jinja::Token& token : tokens) {
      if (token.kind == jinja::TokenKind::text) parsed->literals.push_back(token.text);
    }
    parsed->statements = jinja::Parser(std::move(tokens)).all();
    return ChatJinja(std::move(parsed));
  } catch (const jinja::Unknown&) {
    return std::nullopt;
  }
}

std::optional<std::string> ChatJinja::write(const std::vector<ChatMessage>& messages, bool generate) const {
  jinja::Names names{{"tools", {jinja::Kind::none}},
                     {"documents", {jinja::Kind::none}},
                     {"add_generation_prompt", jinja::boolean(generate)}};
  for (const char* token : {"bos", "eos", "pad", "unk", "sep", "cls", "mask"}) {
    const std::string name = std::string(token) + "_token";
    names[name] = jinja::text_value("\1" + name + "\1", /*opaque=*/true);
  }
  jinja::Value list{jinja::Kind::list};
  for (const ChatMessage& message : messages) {
    jinja::Value one{jinja::Kind::object};
    one.members = {{"role", jinja::text_value(message.role)},
                   {"content", jinja::text_value(message.content, /*opaque=*/true)}};
    list.items.push_back(std::move(one));
  }
  names["messages"] = std::move(list);
  try {
    jinja::Run run(std::move(names));
    run.all(parsed_->statements);
    return std::move(run.text);
  } catch (const jinja::Unknown&) {
    return std::nullopt;
  }
}

bool ChatJinja::has_literal(std::string_view text) const {
  return std::find(parsed_->literals.begin(), parsed_->literals.end(), text) != parsed_->literals.end();
}

}  // namespace titan
