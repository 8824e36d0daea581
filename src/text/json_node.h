// A value in a JSON file with its path, so that every error names file, place and remedy. For files of other programs
// (tokenizer.json), which are validated field by field.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace titan {

/// Reads and parses the file. Throws Error(bad_data) with the byte offset of invalid JSON.
nlohmann::json read_json_file(const std::filesystem::path& path);

/// A reference to a value of a document that must outlive it. All errors are Error(bad_data).
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::filesystem::path file, std::string place = "")
      : value_(&value), file_(std::move(file)), place_(std::move(place)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::filesystem::path& file() const { return file_; }
  const std::string& place() const { return place_; }

  /// The field `key` of an object; nothing if missing or null.
  std::optional<JsonNode> find(const std::string& key) const;
  /// The field `key`, which must exist.
  JsonNode at(const std::string& key) const;
  /// Element `index` of an array.
  JsonNode at(size_t index) const;
  /// Elements of an array.
  size_t size() const;

  std::string text() const;
  int64_t number() const;
  /// The field `key`, or `otherwise` if missing or null.
  bool flag(const std::string& key, bool otherwise) const;
  std::string text(const std::string& key) const { return at(key).text(); }

  /// Throws "FILE: PLACE WHAT". `what` must include the remedy.
  [[noreturn]] void fail(std::string_view what) const;

 private:
  const nlohmann::json* value_;
  std::filesystem::path file_;
  std::string place_;
};

}  // namespace titan
