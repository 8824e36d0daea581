// A Jinja parser for the syntax used by published chat templates: converts a template's source to a tree of statements.
// Owned by data; knows nothing of conversations. chat_jinja.h evaluates the tree.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace titan::jinja {

/// Why a template cannot be rendered, as part of a sentence: `the filter "tojson" is not supported`.
class TemplateError : public std::runtime_error {
 public:
  enum class Kind { unsupported, raised };  // raised: by the template's own raise_exception

  explicit TemplateError(const std::string& what, Kind kind = Kind::unsupported)
      : std::runtime_error(what), raised(kind == Kind::raised) {}

  const bool raised;
};

enum class Op {
  text,
  number,
  name,
  list,
  object,   ///< alternating keys and values
  member,   ///< a.b and a["b"]
  slice,    ///< object, from, to, step; an omitted bound is the name "none"
  call,     ///< callee, arguments
  filter,   ///< operand, arguments
  test,     ///< operand, arguments
  keyword,  ///< a keyword argument
  choice,   ///< condition, value, otherwise
  negate,
  binary,
};

struct Expression {
  Op op = Op::text;
  std::string text = {};  // a literal, a name, or a binary operator
  int64_t number = 0;
  std::vector<Expression> parts = {};
};

enum class Do { data, output, branch, loop, leave, set, capture, macro, block };

struct Statement {
  Do what = Do::data;
  std::string text = {};                   // literal text, or the name of the assigned variable
  std::vector<std::string> names = {};     // a loop's targets, a macro's parameters, or the assigned attribute
  Expression value = {};                   // for a macro: a list of default values of its last parameters
  std::vector<Expression> condition = {};  // optional, for a loop
  std::vector<Statement> body = {}, otherwise = {};
};

/// The statements of a template, with white space as in trim_blocks and lstrip_blocks, which `transformers` sets.
/// Throws TemplateError with the line.
std::vector<Statement> parse_template(std::string_view source);

}  // namespace titan::jinja
