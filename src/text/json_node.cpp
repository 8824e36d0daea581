#include "json_node.h"

#include <fmt/format.h>
#include <charconv>
#include <optional>
#include <string_view>

#include "titan/base/error.h"
#include "titan/base/file_kind.h"
#include "titan/base/filesystem.h"
#include "titan/base/json.h"
#include "titan/text/utf8.h"

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

}  // namespace titan
