#include "conversation_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "surrogate_escapes.h"
#include "titan/base/json.h"
#include "titan/base/ordered_json.h"
#include "titan/text/utf8.h"

namespace titan {
namespace {

using Json = nlohmann::ordered_json;

/// An odd number in the record's JSON: the one type of value that no JSON text has.
bool is_odd(const Json& value) { return value.is_binary(); }

/// Sets the odd numbers in `value`: where it has {} and `other`, of the same form, has [].
void set_odd(Json& value, const Json& other) {
  if (value.is_object() && other.is_array()) {
    value = Json::binary({});
  } else if (value.is_structured()) {
    auto own = value.begin();
    for (auto at = other.begin(); at != other.end(); ++at, ++own) set_odd(*own, *at);
  }
}

/// As parse_ordered_json, of a text whose odd numbers have become {} in `replaced`. Throws nlohmann's exceptions.
Json parse_with_odd_numbers(const std::string& text, std::string replaced) {
  Json parsed = parse_ordered_json(replaced);
  // A record may have {} itself: another value tells them apart.
  for (size_t at = 0; at + 1 < text.size(); ++at) {
    if (text[at] != '{' && replaced[at] == '{') replaced.replace(at, 2, "[]");
  }
  const Json other = parse_ordered_json(replaced);
  if (parsed.is_object() && other.is_object()) set_odd(parsed, other);
  return parsed;
}

/// Nothing, with the place of the error, if the text is no JSON.
std::optional<Json> parse(const std::string& text, size_t& failed_at) {
  for (const bool again : {false, true}) {
    std::string replaced;
    if (again && !replace_odd_numbers(replaced = text)) break;
    try {
      return again ? parse_with_odd_numbers(text, std::move(replaced)) : parse_ordered_json(text);
    } catch (const Json::parse_error& error) {
      failed_at = error.byte > 0 ? error.byte - 1 : 0;
    } catch (const Json::out_of_range&) {
      failed_at = 0;  // a number beyond double precision
    }
  }
  return std::nullopt;
}

}  // namespace

Json parse_conversation(std::string_view line, RecordText& read) {
  std::string mended(line);
  read.invalid_utf8 = repair_utf8(mended);
  if (!is_shallow_json(mended)) {
    read.problem = fmt::format("the values of this record are nested more than {} levels deep", kDeepestJson);
    return {};
  }
  size_t failed_at = 0;
  std::optional<Json> record = parse(mended, failed_at);
  if (!record) {
    read.invalid_utf8 += repair_surrogate_escapes(mended);
    record = parse(mended, failed_at);
  }
  if (!record) read.problem = describe_no_json(mended, failed_at);
  return std::move(record).value_or(Json());
}

bool has_odd_number(const Json& value) {
  return is_odd(value) || (value.is_structured() && std::any_of(value.begin(), value.end(), has_odd_number));
}

bool is_readable(const Json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>() <= uint64_t{INT64_MAX};
  return !is_odd(value) && (!value.is_structured() || std::all_of(value.begin(), value.end(), is_readable));
}

bool is_nothing(const Json& value) {
  return value.is_null() || is_odd(value) || (value.is_string() && value.get_ref<const std::string&>().empty()) ||
         (value.is_structured() && value.empty());
}

}  // namespace titan
