#include "surrogate_escapes.h"

#include <charconv>
#include <optional>
#include <string_view>

namespace titan {
namespace {

constexpr size_t kEscapeLength = std::string_view("\\uXXXX").size();

/// The code unit of the \u escape at `at`, or nothing if there is none.
std::optional<uint32_t> escaped_unit(std::string_view json, size_t at) {
  if (at + kEscapeLength > json.size() || json[at] != '\\' || json[at + 1] != 'u') return std::nullopt;
  uint32_t unit = 0;
  const char* end = json.data() + at + kEscapeLength;
  const auto [stop, problem] = std::from_chars(json.data() + at + 2, end, unit, 16);
  if (problem != std::errc() || stop != end) return std::nullopt;
  return unit;
}

bool is_high(uint32_t unit) { return unit >= 0xD800 && unit < 0xDC00; }
bool is_low(uint32_t unit) { return unit >= 0xDC00 && unit < 0xE000; }

}  // namespace

int64_t repair_surrogate_escapes(std::string& json) {
  int64_t repaired = 0;
  for (size_t at = json.find('\\'); at != json.npos; at = json.find('\\', at)) {
    const std::optional<uint32_t> unit = escaped_unit(json, at);
    if (!unit) {
      at += 2;  // both characters of another escape: the second may be a backslash, which begins none
      continue;
    }
    const std::optional<uint32_t> next = escaped_unit(json, at + kEscapeLength);
    if (is_high(*unit) && next && is_low(*next)) {
      at += 2 * kEscapeLength;
      continue;
    }
    if (is_high(*unit) || is_low(*unit)) {
      json.replace(at, kEscapeLength, "\\ufffd");
      ++repaired;
    }
    at += kEscapeLength;
  }
  return repaired;
}

}  // namespace titan
