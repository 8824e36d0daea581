// The values of a chat template's Jinja and their operations. A text carries the origin of its bytes, so trimming,
// splitting and joining need no markers in it. Owned by data; knows no syntax.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat_jinja_syntax.h"

namespace titan::jinja {

/// Text with its origin: 0 for the template, i + 1 for message i.
struct TracedText {
  struct Span {
    size_t end;
    size_t from;
  };

  TracedText() = default;
  explicit TracedText(std::string_view bytes, size_t from = 0) { append(bytes, from); }

  void append(std::string_view bytes, size_t from);
  void operator+=(const TracedText& more);
  TracedText part(size_t begin, size_t end) const;

  std::string text = {};
  std::vector<Span> spans = {};
};

enum class Kind { undefined, none, boolean, number, text, list, object, macro };

struct Value {
  Kind kind = Kind::undefined;
  int64_t number = 0;    // or a boolean
  TracedText text = {};  // or the name of the undefined value
  std::shared_ptr<std::vector<Value>> items = {};
  std::shared_ptr<std::map<std::string, Value>> members = {};
  const Statement* macro = nullptr;
};

using Items = std::vector<Value>;
using Members = std::map<std::string, Value>;

inline Value boolean(bool value) { return {Kind::boolean, value ? 1 : 0}; }
inline Value number(int64_t value) { return {Kind::number, value}; }
inline Value text_value(TracedText text) { return {Kind::text, 0, std::move(text)}; }
inline Value list(Items items) { return {Kind::list, 0, {}, std::make_shared<Items>(std::move(items))}; }
inline Value object(Members members) {
  return {Kind::object, 0, {}, {}, std::make_shared<Members>(std::move(members))};
}

[[noreturn]] void unsupported(const std::string& what);
/// Throws: the value is undefined, or is not a `wanted`.
[[noreturn]] void misfit(const Value& value, const char* wanted);

const TracedText& as_text(const Value& value);
bool truth(const Value& value);
/// The value as Python prints it.
TracedText printed(const Value& value);
/// The items of a list, the characters of a text or the keys of an object; empty for an undefined value.
std::shared_ptr<const Items> items_of(const Value& value);

Value member(const Value& of, const Value& key);
/// Python's slice of a list or text; `bounds` are from, to and step, or none.
Value slice(const Value& of, const std::array<Value, 3>& bounds);
/// Applies a binary operator other than "and" and "or".
Value binary(const std::string& sign, const Value& a, const Value& b);
bool test(const std::string& name, const Value& value, const Items& arguments);
Value filter(const std::string& name, const Value& value, const Items& arguments);
Value method(const std::string& name, const Value& of, const Items& arguments);
/// Calls a built-in function (not a macro); `named` are its keyword arguments.
Value call(const std::string& name, const Items& arguments, Members named);

}  // namespace titan::jinja
