// The syntax of Jinja as far as published chat templates use it: a template's source as a tree of statements.
// Owned by data; knows nothing of conversations. What the tree means: chat_jinja.h.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace titan::jinja {

/// Why a template cannot be run, as part of a sentence: `the filter "tojson" is not supported`.
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
  object,   ///< keys and values in turn
  member,   ///< a.b and a["b"]
  slice,    ///< of, from, to, step; a bound that is left out is the name "none"
  call,     ///< of, arguments
  filter,   ///< of, arguments
  test,     ///< of, arguments
  keyword,  ///< an argument with a name
  choice,   ///< condition, value, otherwise
  negate,
  binary,
};

struct Expression {
  Op op = Op::text;
  std::string text = {};  // a literal, a name, or the sign of a binary operation
  int64_t number = 0;
  std::vector<Expression> parts = {};
};

enum class Do { data, output, branch, loop, leave, set, capture, macro, block };

struct Statement {
  Do what = Do::data;
  std::string text = {};                   // data, or the name that is set
  std::vector<std::string> names = {};     // a loop's targets, a macro's parameters, the attribute that is set
  Expression value = {};                   // of a macro: a list of the defaults of its last parameters
  std::vector<Expression> condition = {};  // of a loop, or none
  std::vector<Statement> body = {}, otherwise = {};
};

/// The statements of a template, white space as with trim_blocks and lstrip_blocks, which `transformers` sets. Throws
/// TemplateError with the line.
std::vector<Statement> parse_template(std::string_view source);

}  // namespace titan::jinja
