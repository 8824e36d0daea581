#include "titan/base/json.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace titan {
namespace {

constexpr std::string_view kNumberCharacters = "+-.0123456789eE";

/// The length of the number at `at` that a reader of JSON refuses; 0 if there is none.
size_t odd_number(const std::string& json, size_t at) {
  for (const std::string_view name : {"NaN", "Infinity", "-Infinity"}) {
    if (json.compare(at, name.size(), name) == 0) return name.size();
  }
  const size_t end = std::min(json.find_first_not_of(kNumberCharacters, at), json.size());
  const std::string number = json.substr(at, end - at);
  char* stop = nullptr;
  const double value = std::strtod(number.c_str(), &stop);
  return *stop == '\0' && std::isinf(value) ? number.size() : 0;
}

/// Calls `visit` with the place of each character outside strings; it returns the place of the last character that it
/// has read, or the end of the text to stop.
template <class Visit>
void scan_outside_strings(std::string_view json, const Visit& visit) {
  bool is_string = false;
  for (size_t at = 0; at < json.size(); ++at) {
    const char c = json[at];
    if (is_string) {
      at += c == '\\' ? 1 : 0;
      is_string = c != '"';
    } else if (c == '"') {
      is_string = true;
    } else {
      at = visit(at);
    }
  }
}

}  // namespace

bool is_shallow_json(std::string_view text) {
  int depth = 0, deepest = 0;
  scan_outside_strings(text, [&](size_t at) {
    const char c = text[at];
    if (c == '[' || c == '{') deepest = std::max(deepest, ++depth);
    if (c == ']' || c == '}') --depth;
    return deepest > kDeepestJson ? text.size() : at;
  });
  return deepest <= kDeepestJson;
}

bool replace_odd_numbers(std::string& json) {
  bool found = false;
  scan_outside_strings(json, [&](size_t at) {
    const char c = json[at];
    if (c != 'N' && c != 'I' && c != '-' && (c < '0' || c > '9')) return at;
    const size_t length = odd_number(json, at);
    if (length > 0) json.replace(at, length, "{}" + std::string(length - 2, ' '));
    found = found || length > 0;
    const size_t end = std::min(json.find_first_not_of(kNumberCharacters, at), json.size());
    return end > at ? end - 1 : at;
  });
  return found;
}

std::string json_place(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t begin = before.rfind('\n') == before.npos ? 0 : before.rfind('\n') + 1;
  const std::string_view rest = before.substr(begin);
  const auto column = 1 + std::count_if(rest.begin(), rest.end(),
                                        [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  return fmt::format("{}:{}", line, column);
}

}  // namespace titan
