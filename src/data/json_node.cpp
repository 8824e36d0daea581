#include "json_node.h"

#include <fmt/format.h>
#include <charconv>
#include <optional>
#include <string_view>

#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/filesystem.h"
#include "titan/base/json.h"
#include "titan/data/utf8.h"

namespace titan {
namespace {

constexpr std::string_view kDamagedJson = "The file may be damaged or cut short: get it again";

}  // namespace

nlohmann::json read_json_file(const std::filesystem::path& path) {
  const std::string bytes = read_text_file(path, ExitCode::bad_data);
  if (valid_utf8_length(bytes) != bytes.size()) {
    throw Error(ExitCode::bad_data, fmt::format("{}: byte {} is not UTF-8, so this is not JSON. {}.", path.string(),
                                                valid_utf8_length(bytes) + 1, kDamagedJson));
  }
  try {
    return parse_json(bytes);
  } catch (const nlohmann::json::parse_error& error) {
    throw Error(ExitCode::bad_data, fmt::format("{}:{}: this is not JSON from here on. {}.", path.string(),
                                                json_place(bytes, error.byte > 0 ? error.byte - 1 : 0), kDamagedJson));
  } catch (const nlohmann::json::exception& error) {
    throw Error(ExitCode::bad_data, fmt::format("{}: {}. {}.", path.string(), error.what(), kDamagedJson));
  }
}

std::optional<JsonNode> JsonNode::find(const std::string& key) const {
  if (!value_->is_object()) fail(fmt::format("is not an object. {}.", kDamagedJson));
  auto field = value_->find(key);
  if (field == value_->end() || field->is_null()) return std::nullopt;
  return JsonNode(*field, file_, place_.empty() ? key : fmt::format("{}.{}", place_, key));
}

JsonNode JsonNode::at(const std::string& key) const {
  std::optional<JsonNode> field = find(key);
  if (!field) fail(fmt::format("has no {}. {}.", key, kDamagedJson));
  return *field;
}

JsonNode JsonNode::at(size_t index) const {
  if (index >= size()) fail(fmt::format("has no element {}. {}.", index, kDamagedJson));
  return JsonNode((*value_)[index], file_, fmt::format("{}[{}]", place_, index));
}

size_t JsonNode::size() const {
  if (!value_->is_array()) fail(fmt::format("is not a list. {}.", kDamagedJson));
  return value_->size();
}

std::string JsonNode::text() const {
  if (!value_->is_string()) fail(fmt::format("is not a string. {}.", kDamagedJson));
  return value_->get<std::string>();
}

int64_t JsonNode::number() const {
  if (!value_->is_number_integer()) fail(fmt::format("is not a whole number. {}.", kDamagedJson));
  return value_->get<int64_t>();
}

bool JsonNode::flag(const std::string& key, bool otherwise) const {
  std::optional<JsonNode> field = find(key);
  if (!field) return otherwise;
  if (!field->value_->is_boolean()) field->fail(fmt::format("is neither true nor false. {}.", kDamagedJson));
  return field->value_->get<bool>();
}

void JsonNode::fail(std::string_view what) const {
  throw Error(ExitCode::bad_data,
              fmt::format("{}: {} {}", file_.string(), place_.empty() ? "the file's value" : place_, what));
}

namespace {

constexpr size_t kEscapeLength = 6;  // \uXXXX

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
      at += 2;  // skip a two-character escape: the second may be a backslash
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
