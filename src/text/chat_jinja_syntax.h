// A Jinja parser: converts a template's source to a tree of statements. It reads Jinja's whole expression language;
// what cannot be run here becomes an Op::refuse or Do::refuse, which is an error only if it is reached. Owned by data;
// knows nothing of conversations. chat_jinja.h evaluates the tree.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace titan::jinja {

/// Why a template cannot be rendered, as part of a sentence: `the filter "pprint" is not supported`.
class TemplateError : public std::runtime_error {
 public:
  /// raised: by the template's own raise_exception; mistaken: an error in Jinja, too
  enum class Kind { unsupported, mistaken, raised };

  explicit TemplateError(const std::string& what, Kind of = Kind::mistaken, std::string_view needed = {})
      : std::runtime_error(what), kind(of), raised(of == Kind::raised), undefined(needed) {}

  const Kind kind;
  const bool raised;
  const std::string undefined;  ///< the name whose value is needed; empty for another error
};

enum class Op {
  text,
  number,
  real,
  name,
  list,
  tuple,
  object,        ///< alternating keys and values
  attribute,     ///< a.b: object; `text` is the name
  member,        ///< a[b]: object, key
  slice,         ///< object, from, to, step; an omitted bound is the name "none"
  call,          ///< callee, arguments
  filter,        ///< operand, arguments
  test,          ///< operand, arguments
  keyword,       ///< an argument with a name
  spread,        ///< *argument
  spread_named,  ///< **argument
  choice,        ///< condition, value, otherwise
  negate,        ///< not
  minus,
  plus,
  logic,    ///< and, or
  binary,   ///< + - * / // % ** ~
  compare,  ///< first operand, then one Op::binary with one part for each comparison
  block,    ///< the text of the block whose filters these are
  refuse,   ///< `text`: what is not supported
};

struct Expression {
  Op op = Op::text;
  std::string text = {};  // a literal, a name, or an operator
  int64_t number = 0;
  double real = 0;
  std::vector<Expression> parts = {};
  int depth = 1;
};

enum class Do { data, output, branch, loop, leave, set, capture, macro, call, filter, scope, generation, refuse };

struct Statement {
  Do what = Do::data;
  std::string text = {};                  // literal text, a macro's name, break or continue, or what is refused
  Expression target = {};                 // of a loop or an assignment: a name, a.b, or a tuple of them
  Expression value = {};                  // of a capture or filter: the filters
  std::vector<Expression> more = {};      // a branch's conditions; a loop's condition; a block's variables
  std::vector<std::string> names = {};    // a macro's parameters
  std::vector<Expression> defaults = {};  // of the last parameters, or values of a block's variables
  std::vector<std::vector<Statement>> bodies = {};  // of a branch: one per condition, then the else; of a loop: else
  bool recursive = false;                           // a loop
  bool caller = false, varargs = false, kwargs = false;  // the names that a macro's body mentions
};

struct Syntax {
  std::vector<Statement> statements;
  bool has_generation = false;  // marks labels with {% generation %}
};

/// The statements of a template, with white space as in trim_blocks and lstrip_blocks, which `transformers` sets.
/// Throws TemplateError with the line.
Syntax parse_template(std::string_view source);

}  // namespace titan::jinja
