#include "chat_jinja_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>

#include "titan/data/utf8.h"

namespace titan::jinja {
namespace {

constexpr int kDeepest = 100;
constexpr size_t kLongest = 1 << 16;

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

class Parser {
 public:
  explicit Parser(std::string_view source) : source_(source) {
    repair_utf8(source_);
    std::erase(source_, '\r');  // Jinja reads every line end as \n
    if (source_.ends_with('\n')) source_.pop_back();
    if (source_.size() > kLongest) fail("a template of this length is not supported");
  }

  std::vector<Statement> all() {
    std::vector<Statement> statements = body();
    if (!tag_.empty()) unexpected_tag();
    return statements;
  }

 private:
  /// Counts the parser's recursion depth.
  struct Deeper {
    explicit Deeper(Parser* of) : parser(of) {
      if (++parser->depth_ > kDeepest) parser->fail("nesting of this depth is not supported");
    }
    ~Deeper() { --parser->depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    Parser* parser;
  };

  [[noreturn]] void fail(const std::string& what) const {
    const auto end = source_.begin() + static_cast<std::ptrdiff_t>(at_);
    throw TemplateError(fmt::format("line {}: {}", 1 + std::count(source_.begin(), end, '\n'), what));
  }
  [[noreturn]] void unexpected_tag() const { fail(fmt::format("the tag \"{}\" is not supported here", tag_)); }
  [[noreturn]] void unexpected() {
    fail(rest().empty() ? "the template ends too early" : fmt::format("unexpected \"{}\"", character()));
  }
  void expect(bool found) {
    if (!found) unexpected();
  }

  // The next characters of the source. Inside a tag, white space is skipped first.

  std::string_view character() const {
    return std::string_view(source_).substr(at_, utf8_length(static_cast<unsigned char>(source_[at_])));
  }

  std::string_view rest() {
    while (at_ < source_.size() && is_space(source_[at_])) ++at_;
    return std::string_view(source_).substr(at_);
  }
  bool take(std::string_view text) {
    if (!std::string_view(source_).substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  bool ends(std::string_view end) { return rest().starts_with(end) || rest().starts_with("-" + std::string(end)); }
  bool sign(std::string_view text) { return !ends("%}") && !(text == "-" && ends("}}")) && take(text); }
  std::string_view next_word() {
    const std::string_view left = rest();
    return left.substr(0, static_cast<size_t>(std::find_if_not(left.begin(), left.end(), is_word) - left.begin()));
  }
  bool word(std::string_view text) { return next_word() == text && take(text); }
  std::string name() {
    std::string found(next_word());
    expect(!found.empty() && std::isdigit(static_cast<unsigned char>(found[0])) == 0);
    at_ += found.size();
    return found;
  }

  // Tags and the text between them.

  void end_tag(std::string_view end = "%}") {
    expect(ends(end));
    const bool strips = take("-");
    take(end);
    after_tag(strips, end != "}}");
  }

  void after_tag(bool strips, bool trims) {
    if (strips) {
      rest();
    } else if (trims) {
      take("\n");
    }
  }

  /// Adds the text up to the next tag and enters the tag. Returns its opening, {{ or {%; empty at the end.
  std::string_view data(std::vector<Statement>& statements) {
    const std::string_view source = source_;
    for (;;) {
      const size_t begin = at_, at = std::min({source.find("{{", at_), source.find("{%", at_), source.find("{#", at_)});
      size_t end = std::min(at, source.size());
      at_ = std::min(end + 2, source.size());
      if (take("-")) {
        while (end > begin && is_space(source[end - 1])) --end;
      } else if (at != source.npos && source[at + 1] != '{') {  // only blanks before it on its line
        size_t line = at;
        while (line > 0 && source[line - 1] != '\n' && is_space(source[line - 1])) --line;
        if (line == 0 || source[line - 1] == '\n') end = std::max(begin, line);
      }
      if (end > begin) statements.push_back({Do::data, source_.substr(begin, end - begin)});
      if (at == source.npos) return {};
      if (source[at + 1] != '#') return source.substr(at, 2);
      const size_t close = source.find("#}", at_);
      if (close == source.npos) fail("a comment does not end");
      at_ = close + 2;
      after_tag(source[close - 1] == '-', true);
    }
  }

  /// Parses up to a tag that it does not handle, and stores its name in `tag_`; empty at the end.
  std::vector<Statement> body() {
    const Deeper deeper(this);
    std::vector<Statement> statements;
    for (;;) {
      const std::string_view begin = data(statements);
      tag_ = begin == "{%" ? name() : "";
      if (begin == "{{") {
        statements.push_back({Do::output, "", {}, expression()});
        end_tag("}}");
      } else if (tag_ == "if") {
        statements.push_back(branch());
      } else if (tag_ == "for") {
        statements.push_back(loop());
      } else if (tag_ == "set") {
        statements.push_back(assignment());
      } else if (tag_ == "macro") {
        statements.push_back(macro());
      } else if (tag_ == "break" || tag_ == "continue") {
        statements.push_back({Do::leave, tag_});
        end_tag();
      } else if (tag_ == "generation") {
        statements.push_back({Do::block});
        statements.back().body = body_until("endgeneration");
      } else {
        return statements;
      }
    }
  }

  /// Starts at the end of the previous tag.
  std::vector<Statement> body_until(std::string_view name, bool is_open = true) {
    std::vector<Statement> statements;
    if (is_open) {
      end_tag();
      statements = body();
    }
    if (tag_ != name) tag_.empty() ? unexpected() : unexpected_tag();
    end_tag();
    return statements;
  }
  std::vector<Statement> otherwise_until(std::string_view name) { return body_until(name, /*is_open=*/tag_ == "else"); }

  Statement branch() {
    const Deeper deeper(this);
    Statement one{Do::branch, "", {}, expression()};
    end_tag();
    one.body = body();
    if (tag_ == "elif") {
      one.otherwise.push_back(branch());
    } else {
      one.otherwise = otherwise_until("endif");
    }
    return one;
  }

  Statement loop() {
    Statement one{Do::loop};
    do one.names.push_back(name());
    while (sign(","));
    expect(word("in"));
    one.value = operation(0);
    if (word("if")) one.condition.push_back(expression());
    end_tag();
    one.body = body();
    one.otherwise = otherwise_until("endfor");
    return one;
  }

  Statement assignment() {
    Statement one{Do::set, name()};
    if (sign(".")) one.names.push_back(name());
    if (sign("=")) {
      one.value = expression();
      end_tag();
    } else {
      one.what = Do::capture;
      one.body = body_until("endset");
    }
    return one;
  }

  Statement macro() {
    Statement one{Do::macro, name()};
    expect(sign("("));
    while (!sign(")")) {
      if (!one.names.empty()) expect(sign(","));
      one.names.push_back(name());
      if (sign("=")) one.value.parts.push_back(expression());
    }
    one.body = body_until("endmacro");
    return one;
  }

  // Expressions.

  static Expression joined(Op op, std::string text, std::vector<Expression> parts) {
    return {op, std::move(text), 0, std::move(parts)};
  }

  Expression expression() {
    const Deeper deeper(this);
    Expression first = operation(0);
    while (word("if")) {
      Expression condition = operation(0);
      Expression otherwise = word("else") ? expression() : Expression{Op::name};
      first = joined(Op::choice, "", {std::move(condition), std::move(first), std::move(otherwise)});
    }
    return first;
  }

  /// Parses binary operators of precedence `level` and higher, left-associative.
  Expression operation(size_t level) {
    static const std::vector<std::vector<std::string>> kLevels{{"or"}, {"and"}, {}, {"+", "-"}, {"~"}, {"%"}};
    if (level == kLevels.size()) return with_filters();
    if (kLevels[level].empty()) return comparison(level + 1);
    Expression first = operation(level + 1);
    for (;;) {
      const auto& signs = kLevels[level];
      const auto found = std::find_if(signs.begin(), signs.end(), [&](const auto& each) { return operates(each); });
      if (found == signs.end()) return first;
      first = joined(Op::binary, *found, {std::move(first), operation(level + 1)});
    }
  }
  bool operates(std::string_view text) { return is_word(text[0]) ? word(text) : sign(text); }

  Expression comparison(size_t next) {
    const Deeper deeper(this);
    if (word("not")) return joined(Op::negate, "", {comparison(next)});
    Expression first = operation(next);
    for (const char* each : {"==", "!=", "<=", ">=", "<", ">", "in"}) {
      if (operates(each)) return joined(Op::binary, each, {std::move(first), operation(next)});
    }
    if (!word("not")) return first;
    expect(word("in"));
    return joined(Op::negate, "", {joined(Op::binary, "in", {std::move(first), operation(next)})});
  }

  Expression with_filters() {
    const Deeper deeper(this);
    if (sign("-")) return joined(Op::binary, "-", {Expression{Op::number}, with_filters()});
    Expression first = primary();
    for (;;) {
      if (sign(".")) {
        first = joined(Op::member, "", {std::move(first), Expression{Op::text, name()}});
      } else if (sign("[")) {
        first = subscript(std::move(first));
      } else if (sign("(")) {
        first = joined(Op::call, "", arguments(std::move(first)));
      } else {
        break;
      }
    }
    for (;;) {
      const bool test = word("is");
      if (!test && !sign("|")) return first;
      const bool negates = test && word("not");
      const std::string what = name();
      std::vector<Expression> parts{std::move(first)};
      if (sign("(")) {
        parts = arguments(std::move(parts[0]));
      } else if (test && (rest().starts_with('\'') || rest().starts_with('"'))) {
        parts.push_back(primary());
      }
      first = joined(test ? Op::test : Op::filter, what, std::move(parts));
      if (negates) first = joined(Op::negate, "", {std::move(first)});
    }
  }

  Expression subscript(Expression first) {
    std::vector<Expression> parts{std::move(first)};
    bool slices = false;
    do {
      const bool left_out = rest().starts_with(':') || rest().starts_with(']');
      parts.push_back(left_out ? Expression{Op::name, "none"} : expression());
      slices = slices || left_out || rest().starts_with(':');
    } while (sign(":"));
    expect(sign("]") && parts.size() <= 4);
    if (!slices) return joined(Op::member, "", std::move(parts));
    parts.resize(4, Expression{Op::name, "none"});
    return joined(Op::slice, "", std::move(parts));
  }

  /// Parses arguments after their operand.
  std::vector<Expression> arguments(Expression first) {
    std::vector<Expression> parts{std::move(first)};
    while (!sign(")")) {
      if (parts.size() > 1) expect(sign(","));
      const size_t before = at_;
      const std::string word(next_word());
      at_ += word.size();
      if (!word.empty() && !rest().starts_with("==") && sign("=")) {
        parts.push_back(joined(Op::keyword, word, {expression()}));
      } else {
        at_ = before;
        parts.push_back(expression());
      }
    }
    return parts;
  }

  Expression primary() {
    const std::string_view left = rest();
    if (left.starts_with('\'') || left.starts_with('"')) {
      std::string text = literal();
      while (rest().starts_with('\'') || rest().starts_with('"')) text += literal();
      return {Op::text, text};
    }
    Expression number{Op::number};
    const auto read = std::from_chars(left.data(), left.data() + next_word().size(), number.number);
    if (read.ec == std::errc() && number.number >= 0 && number.number < 1'000'000'000) {
      at_ += static_cast<size_t>(read.ptr - left.data());
      return number;
    }
    if (sign("(")) return items(")");
    if (sign("[")) return items("]");
    if (sign("{")) return items("}");
    return {Op::name, name()};
  }

  std::string literal() {
    constexpr std::string_view kEscapes = "ntr\\'\"", kMeanings = "\n\t\r\\'\"";
    const char quote = source_[at_];
    std::string text;
    for (++at_; at_ < source_.size() && source_[at_] != quote; ++at_) {
      const bool escaped = source_[at_] == '\\' && at_ + 1 < source_.size();
      const size_t meaning = escaped ? kEscapes.find(source_[++at_]) : 0;
      if (meaning == kEscapes.npos) fail(fmt::format("the escape \\{} is not supported", character()));
      text.push_back(escaped ? kMeanings[meaning] : source_[at_]);
    }
    expect(take(std::string_view(&quote, 1)));
    return text;
  }

  /// Parses the items of a list, a tuple, an object or parentheses.
  Expression items(const std::string& end) {
    std::vector<Expression> items;
    bool comma = false;
    while (!sign(end)) {
      if (!items.empty()) {
        expect(sign(","));
        comma = true;
        if (sign(end)) break;
      }
      items.push_back(expression());
      if (end != "}") continue;
      expect(sign(":"));
      items.push_back(expression());
    }
    if (end == ")" && !comma && items.size() == 1) return std::move(items[0]);
    return joined(end == "}" ? Op::object : Op::list, "", std::move(items));
  }

  std::string source_;
  std::string tag_ = {};
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::vector<Statement> parse_template(std::string_view source) { return Parser(source).all(); }

}  // namespace titan::jinja
