// JSON that comes from outside (files, peers) is parsed here: its depth is bounded before nlohmann's recursive
// functions (comparison, copy, dump) see it. SAX readers, which build no values, need no bound.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace titan {

inline constexpr int kDeepestJson = 100;

/// Throws nlohmann's out_of_range, as parse_json does for text that nests deeper than kDeepestJson.
[[noreturn]] inline void refuse_deep_json() {
  throw nlohmann::json::out_of_range::create(
      408, fmt::format("its values are nested more than {} levels deep", kDeepestJson), nullptr);
}

/// Whether objects and arrays nest at most kDeepestJson levels. Linear; text that is no JSON gets some answer.
inline bool is_shallow_json(std::string_view text) {
  int depth = 0;
  bool is_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_string) {
      i += c == '\\' ? 1 : 0;
      is_string = c != '"';
    } else if (c == '"') {
      is_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kDeepestJson) return false;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return true;
}

/// As Json::parse does: throws nlohmann's exceptions, or returns a discarded value where they are not allowed.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text, bool allow_exceptions = true) {
  if (is_shallow_json(text)) return Json::parse(text, nullptr, allow_exceptions);
  if (allow_exceptions) refuse_deep_json();
  return Json(Json::value_t::discarded);
}

/// Json::parse with a callback, for text or a stream: throws nlohmann's exceptions.
template <class Json = nlohmann::json, class Input, class Callback>
Json parse_json_with(Input&& input, const Callback& callback) {
  const auto bounded = [&](int depth, typename Json::parse_event_t event, Json& parsed) {
    if (depth > kDeepestJson) refuse_deep_json();
    return callback(depth, event, parsed);
  };
  return Json::parse(std::forward<Input>(input), bounded);
}

/// On one line. Bytes that are no UTF-8 (a path may have them) become U+FFFD, where dump() throws.
template <class Json>
std::string json_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace titan
