#include "chat_jinja_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <utility>

#include "chat_jinja_expressions.h"
#include "titan/text/utf8.h"

namespace titan::jinja {
namespace {

/// Statements and the text between them.
class Parser : private ExpressionParser {
 public:
  explicit Parser(std::string_view source) : ExpressionParser(source) {}

  Syntax all() {
    Syntax syntax;
    syntax.statements = body();
    if (!tag_.empty()) unexpected_tag();
    syntax.has_generation = has_generation_;
    return syntax;
  }

 private:
  [[noreturn]] void unexpected_tag() const { fail(fmt::format("the tag \"{}\" is not supported here", tag_)); }

  void end_tag(std::string_view end = "%}") {
    expect(ends(end));
    const bool keeps = take("+"), strips = take("-");
    take(end);
    end_.clear();
    after_tag(strips, end != "}}" && !keeps);
  }

  void after_tag(bool strips, bool trims) {
    if (strips) {
      const std::string_view left = std::string_view(source_).substr(at_);
      at_ = source_.size() - strip_characters(left, nullptr, true, false).size();
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
        end = begin + strip_characters(source.substr(begin, end - begin), nullptr, false, true).size();
      } else if (!take("+") && at != source.npos && source[at + 1] != '{') {  // lstrip_blocks, which transformers sets
        const size_t feed = source.substr(begin, at - begin).rfind('\n');
        const size_t line = feed == source.npos ? begin : begin + feed + 1;
        const bool starts = line == 0 || source[line - 1] == '\n';
        if (starts && strip_characters(source.substr(line, at - line)).empty()) end = line;
      }
      if (end > begin) statements.push_back({Do::data, source_.substr(begin, end - begin)});
      if (at == source.npos) return {};
      if (source[at + 1] == '#') {
        const size_t close = source.find("#}", at_);
        if (close == source.npos) fail("a comment does not end");
        const char before = close > at_ ? source[close - 1] : ' ';
        at_ = close + 2;
        after_tag(before == '-', before != '+');
        continue;
      }
      end_ = source[at + 1] == '%' ? "%}" : "}}";
      if (end_ == "%}" && next_word() == "raw") {
        raw(statements);
        continue;
      }
      return source.substr(at, 2);
    }
  }

  void raw(std::vector<Statement>& statements) {
    expect(word("raw") && ends("%}"));
    const bool strips_begin = take("-");
    expect(take("%}"));
    after_tag(strips_begin, /*trims=*/false);
    const size_t begin = at_;
    for (size_t at = source_.find("{%", begin); at != source_.npos; at = source_.find("{%", at + 2)) {
      at_ = at + 2;
      const bool strips = take("-");
      if (!strips) take("+");
      end_ = "%}";
      if (!word("endraw") || !ends("%}")) continue;
      std::string_view text = std::string_view(source_).substr(begin, at - begin);
      const size_t line = text.rfind('\n') + 1;
      if (strips) {
        text = strip_characters(text, nullptr, false, true);
      } else if (source_[at + 2] != '+' && (line > 0 || source_[begin - 1] == '\n') &&
                 strip_characters(text.substr(line)).empty()) {
        text = text.substr(0, line);
      }
      if (!text.empty()) statements.push_back({Do::data, std::string(text)});
      return end_tag();
    }
    at_ = source_.size();
    unexpected();
  }

  /// Parses up to a tag that it does not handle, and stores its name in `tag_`; empty at the end.
  std::vector<Statement> body() {
    const Deeper deeper(this);
    std::vector<Statement> statements;
    for (;;) {
      const std::string_view begin = data(statements);
      tag_ = begin == "{%" ? name() : "";
      if (begin == "{{") {
        statements.push_back({.what = Do::output, .value = tuple()});
        end_tag("}}");
      } else if (std::optional<Statement> one = statement()) {
        statements.push_back(std::move(*one));
      } else {
        return statements;
      }
    }
  }

  /// The statement whose tag has begun; nothing if this is not one that begins a statement.
  std::optional<Statement> statement() {
    if (tag_ == "if") return branch();
    if (tag_ == "for") return loop();
    if (tag_ == "set") return assignment();
    if (tag_ == "macro") return macro();
    if (tag_ == "call") return call();
    if (tag_ == "with") return scope();
    if (tag_ == "break" || tag_ == "continue") {
      if (loops_ == 0) unexpected_tag();
      Statement one{Do::leave, tag_};
      end_tag();
      return one;
    }
    if (tag_ == "generation") {
      has_generation_ = true;
      Statement one{Do::generation};
      one.bodies.push_back(outside_loops("endgeneration"));
      return one;
    }
    if (tag_ == "filter") {
      Statement one{.what = Do::filter, .value = filters(Expression{Op::block}, /*begins=*/true)};
      one.bodies.push_back(outside_loops("endfilter"));
      return one;
    }
    if (tag_ == "include" || tag_ == "import" || tag_ == "from" || tag_ == "extends" || tag_ == "block" ||
        tag_ == "autoescape") {
      return refused();
    }
    return std::nullopt;
  }

  /// What needs other templates, and autoescape: an error only where it runs.
  Statement refused() {
    Statement one{Do::refuse, fmt::format("the tag \"{}\"", tag_)};
    const std::string tag = tag_;
    while (!ends("%}")) {
      if (rest().empty()) unexpected();
      if (rest().starts_with('\'') || rest().starts_with('"')) {
        literal();
      } else {
        ++at_;
      }
    }
    if (tag == "block" || tag == "autoescape") {
      end_tag();
      body();
      if (tag_ != "end" + tag) tag_.empty() ? unexpected() : unexpected_tag();
      word(next_word());
    }
    end_tag();
    return one;
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

  /// A body that Jinja compiles to a function: break and continue cannot leave it.
  std::vector<Statement> outside_loops(std::string_view name) {
    const int loops = std::exchange(loops_, 0);
    std::vector<Statement> statements = body_until(name);
    loops_ = loops;
    return statements;
  }

  Statement branch() {
    Statement one{Do::branch};
    do {
      one.more.push_back(tuple(/*choices=*/false));
      end_tag();
      one.bodies.push_back(body());
    } while (tag_ == "elif");
    one.bodies.push_back(body_until("endif", /*is_open=*/tag_ == "else"));
    return one;
  }

  Statement loop() {
    Statement one{.what = Do::loop, .target = targets(/*attributes=*/false)};
    if (one.target.text == "loop") fail("loop cannot be assigned to here");
    expect(word("in"));
    one.value = tuple(/*choices=*/false);
    if (word("if")) one.more.push_back(expression());
    one.recursive = word("recursive");
    end_tag();
    ++loops_;
    one.bodies.push_back(body());
    --loops_;
    one.bodies.push_back(body_until("endfor", /*is_open=*/tag_ == "else"));
    return one;
  }

  /// The targets of an assignment: names, attributes of namespaces, or a tuple of these.
  Expression targets(bool attributes) {
    const Deeper deeper(this);
    std::vector<Expression> all;
    bool comma = false;
    do {
      if (sign("(")) {
        all.push_back(targets(attributes));
        expect(sign(")"));
        continue;
      }
      if (!all.empty() && (next_word() == "in" || token() == "=")) break;
      all.push_back({Op::name, name()});
      if (is_constant(all.back().text)) fail(fmt::format("{} cannot be assigned to", all.back().text));
      if (attributes && sign(".")) all.back() = joined(Op::attribute, name(), {std::move(all.back())});
    } while (sign(",") && (comma = true));
    if (!comma) return std::move(all[0]);
    return joined(Op::tuple, "", std::move(all));
  }

  Statement assignment() {
    Statement one{.what = Do::set, .target = targets(/*attributes=*/true)};
    if (sign("=")) {
      one.value = tuple();
      end_tag();
    } else {
      one.what = Do::capture;
      one.value = filters(Expression{Op::block});
      one.bodies.push_back(outside_loops("endset"));
    }
    return one;
  }

  void parameters(Statement& of) {
    expect(sign("("));
    while (!sign(")")) {
      if (!of.names.empty()) expect(sign(","));
      of.names.push_back(name());
      if (sign("=")) {
        of.defaults.push_back(expression());
      } else if (!of.defaults.empty()) {
        fail("a parameter without a default follows one with a default");
      }
    }
  }

  /// A macro's body, or a call block's: which of Jinja's own names it mentions decides which arguments it takes.
  void macro_body(Statement& one, std::string_view end) {
    const std::array<bool, 3> outer = std::exchange(mentions_, {});
    one.bodies.push_back(outside_loops(end));
    one.caller = mentions_[0], one.varargs = mentions_[1], one.kwargs = mentions_[2];
    for (size_t i = 0; i < outer.size(); ++i) mentions_[i] = mentions_[i] || outer[i];
  }

  Statement macro() {
    Statement one{Do::macro, name()};
    parameters(one);
    macro_body(one, "endmacro");
    return one;
  }

  Statement call() {
    Statement one{Do::call, "caller"};
    if (token() == "(") parameters(one);
    one.value = expression();
    if (one.value.op != Op::call) fail("a call block needs a call");
    macro_body(one, "endcall");
    return one;
  }

  Statement scope() {
    Statement one{Do::scope};
    while (!ends("%}")) {
      if (!one.more.empty()) expect(sign(","));
      one.more.push_back(targets(/*attributes=*/false));
      expect(sign("="));
      one.defaults.push_back(expression());
    }
    one.bodies.push_back(body_until("endwith"));
    return one;
  }

  std::string tag_ = {};
  int loops_ = 0;
  bool has_generation_ = false;
};

}  // namespace

Syntax parse_template(std::string_view source) { return Parser(source).all(); }

}  // namespace titan::jinja
