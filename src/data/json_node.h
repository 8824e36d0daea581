// A value of a JSON file with its position, so that every error about it names file, place and remedy.
// For files of other programs (tokenizer.json), whose shape must be looked at field by field.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace titan {

/// Reads and parses the file. Throws Error(bad_data) with the byte at which it is no JSON.
nlohmann::json read_json_file(const std::filesystem::path& path);

/// Refers to a value of a document that must outlive it. All errors are Error(bad_data).
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::filesystem::path file, std::string place = "")
      : value_(&value), file_(std::move(file)), place_(std::move(place)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::filesystem::path& file() const { return file_; }
  const std::string& place() const { return place_; }

  /// The field `key` of an object; nothing when it is missing or null.
  std::optional<JsonNode> find(const std::string& key) const;
  /// The same, which must be there.
  JsonNode at(const std::string& key) const;
  /// Element `index` of an array.
  JsonNode at(size_t index) const;
  /// Elements of an array.
  size_t size() const;

  std::string text() const;
  int64_t number() const;
  /// The field `key`, or `otherwise` where it is missing or null.
  bool flag(const std::string& key, bool otherwise) const;
  std::string text(const std::string& key) const { return at(key).text(); }

  /// Throws "FILE: PLACE WHAT". What to do about it belongs to `what`.
  [[noreturn]] void fail(std::string_view what) const;

 private:
  const nlohmann::json* value_;
  std::filesystem::path file_;
  std::string place_;
};

// Half surrogate pairs in JSON text. Grammatically \ud83d alone is an escape like any other, and corpora that were cut
// in the middle of a character hold such; but it is no character, and the parser refuses the whole record for it.

/// Replaces every \u escape of a surrogate that has no partner by \ufffd, in place; returns how many there were. Python
/// reads such a record the same way once the text is encoded with errors="replace".
int64_t repair_surrogate_escapes(std::string& json);

}  // namespace titan
