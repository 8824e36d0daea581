// Parses JSON from outside (files, peers): bounds its depth before nlohmann's recursive functions (comparison, copy,
// dump) see it. SAX readers build no values and need no bound.
#pragma once

#include <fmt/format.h>

#include <istream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace titan {

/// Whoever walks, writes or frees a value calls itself for each level: deeper text could overflow the stack. Any number
/// from the few levels that files have to the thousands that a stack holds works.
inline constexpr int kDeepestJson = 100;

/// Throws nlohmann's out_of_range, the error of parse_json for text nested deeper than kDeepestJson.
[[noreturn]] inline void refuse_deep_json() {
  throw nlohmann::json::out_of_range::create(
      408, fmt::format("its values are nested more than {} levels deep", kDeepestJson), nullptr);
}

/// Whether objects and arrays nest at most kDeepestJson levels. Linear; for invalid JSON the result is unspecified.
bool is_shallow_json(std::string_view text);

/// Replaces numbers that Python's json writes and JSON does not have (NaN, Infinity, -Infinity), and numbers beyond
/// double precision, by an empty object and spaces: a value that no reader of a number, text or list accepts, so that
/// such a number does no harm where it is not read. The text keeps its length. Returns whether there was one.
bool replace_odd_numbers(std::string& json);

/// "LINE:COLUMN" of the byte at `offset`; columns count characters, from 1.
std::string json_place(std::string_view text, size_t offset);

/// nlohmann's parser takes a NUL byte outside a string for the end of the text and ignores what follows. The functions
/// below refuse such a text with this error.
template <class Json = nlohmann::json>
typename Json::parse_error nul_byte_error(size_t offset) {
  return Json::parse_error::create(101, offset + 1, "a NUL byte is no JSON", nullptr);
}

/// Like Json::parse: throws nlohmann's exceptions, or returns a discarded value if `allow_exceptions` is false. Accepts
/// what replace_odd_numbers replaces.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text, bool allow_exceptions = true) {
  if (is_shallow_json(text)) {
    Json parsed = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    std::string replaced;
    if (parsed.is_discarded() && replace_odd_numbers(replaced = text)) text = replaced;
    if (parsed.is_discarded()) parsed = Json::parse(text, nullptr, allow_exceptions);
    const size_t nul = text.find('\0');
    if (parsed.is_discarded() || nul == text.npos) return parsed;
    if (allow_exceptions) throw nul_byte_error<Json>(nul);
  } else if (allow_exceptions) {
    refuse_deep_json();
  }
  return Json(Json::value_t::discarded);
}

/// Like Json::sax_parse: passes the text's values to `handler`, and its error.
template <class Json = nlohmann::json, class Handler>
bool parse_json_events(std::string_view text, Handler* handler) {
  if (!Json::sax_parse(text, handler)) return false;
  const size_t nul = text.find('\0');
  return nul == text.npos || handler->parse_error(nul + 1, "\\0", nul_byte_error<Json>(nul));
}

/// Like Json::parse with a callback, for a stream: throws nlohmann's exceptions.
template <class Json = nlohmann::json, class Callback>
Json parse_json_with(std::istream& stream, const Callback& callback) {
  const auto bounded = [&](int depth, typename Json::parse_event_t event, Json& parsed) {
    if (depth > kDeepestJson) refuse_deep_json();
    return callback(depth, event, parsed);
  };
  Json parsed = Json::parse(stream, bounded);
  if (!stream.eof()) throw nul_byte_error<Json>(static_cast<size_t>(stream.tellg()) - 1);
  return parsed;
}

/// `value` on one line. Invalid UTF-8 (possible in paths) becomes U+FFFD, where dump() throws.
template <class Json>
std::string json_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace titan
