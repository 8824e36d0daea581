// What Python does with texts: repr, JSON, letter case, splitting and joining. Every result keeps the origin of its
// bytes. Owned by data.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "chat_jinja_value.h"

namespace titan::jinja {

/// Python's repr of a text.
void quote(Heap& heap, const Text& text, TracedText& to);

struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  std::optional<std::string> indent = {};
  std::string between = ", ", after_key = ": ";
};

/// Python's json.dumps.
void write_json(Heap& heap, const Value& value, const JsonStyle& style, TracedText& to, int depth = 0);

/// upper, lower, capitalize and title as Python's str has them, and Jinja's own filter title.
Value in_case(Heap& heap, const Value& text, std::string_view name);
Value title_of_words(Heap& heap, const Value& text);

Value joined(Heap& heap, const Items& items, const Text& between);
Value joined(Heap& heap, const Items& items);
/// str.split, with at most `most` cuts (-1: any number); without `at`, at white space.
Items split(Heap& heap, const Value& text, const Text* at, int64_t most = -1);
Items split_lines(Heap& heap, const Value& text, bool keep_ends = false);
Value replaced(Heap& heap, const Value& text, const Text& what, const Text& by, int64_t most = -1);
Value stripped(Heap& heap, const Value& text, const Value& set, bool left, bool right);
Value padded(Heap& heap, const Value& text, int64_t before, int64_t after, std::string_view fill);
Value centred(Heap& heap, const Value& text, int64_t width, std::string_view fill = " ");
Value indented(Heap& heap, const Value& text, const std::string& indent, bool first, bool blank);
Value repeated(Heap& heap, const Value& text, int64_t times);
/// With &, <, >, ' and " as HTML has them.
Value escaped(Heap& heap, const Value& text);

/// A method of str.
Value text_method(Heap& heap, std::string_view name, const Value& text, const Items& arguments, const Named& named);

}  // namespace titan::jinja
