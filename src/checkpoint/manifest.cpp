#include "titan/checkpoint/manifest.h"

#include <algorithm>

#include "titan/base/json.h"

namespace titan {
namespace {

constexpr int64_t kFormat = 1;
constexpr std::string_view kOpening = " \"xxh3_128\": \"";
constexpr std::string_view kClosing = "\"\n}\n";

/// The last line of a manifest that begins with `text`.
std::string closing_of(std::string_view text) { return std::string(kOpening) + xxh3_128(text) + std::string(kClosing); }

Manifest manifest_from(const nlohmann::ordered_json& json) {
  const auto format = json.at("format").get<int64_t>();
  if (format != kFormat) {
    throw Error(
        ExitCode::storage,
        fmt::format("its manifest has format {}, and this program knows format {}; use the program that wrote it",
                    format, kFormat));
  }
  Manifest manifest{json.at("step").get<int64_t>(), json.at("run").get<std::string>(), json.at("facts"), {}};
  for (const auto& [name, file] : json.at("files").items()) {
    FileRecord record{file.at("bytes").get<int64_t>(), file.at("xxh3_128").get<std::vector<std::string>>()};
    const int64_t blocks = (record.bytes + kHashBlock - 1) / kHashBlock;
    if (record.bytes < 0 || std::ssize(record.hashes) != blocks) throw DamageError("its manifest contradicts itself");
    manifest.files[name] = std::move(record);
  }
  return manifest;
}

}  // namespace

std::string write_manifest(const Manifest& manifest) {
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  for (const auto& [name, record] : manifest.files) {
    files[name] = {{"bytes", record.bytes}, {"xxh3_128", record.hashes}};
  }
  const nlohmann::ordered_json json{{"format", kFormat},       {"step", manifest.step},     {"run", manifest.run},
                                    {"facts", manifest.facts}, {"block_bytes", kHashBlock}, {"files", files}};
  std::string text = json.dump(1);
  text.resize(text.size() - 2);  // the closing brace and the line before it
  text += ",\n";
  return text + closing_of(text);
}

Manifest read_manifest(std::string_view bytes) {
  const size_t closing = closing_of("").size();
  if (bytes.size() < closing) throw DamageError("its manifest is too short");
  const std::string_view text = bytes.substr(0, bytes.size() - closing);
  if (bytes.substr(text.size()) != closing_of(text)) {
    throw DamageError("its manifest is not as it was written (its XXH3-128 differs)");
  }
  try {
    return manifest_from(parse_json<nlohmann::ordered_json>(bytes));
  } catch (const nlohmann::json::exception& problem) {
    throw DamageError(fmt::format("its manifest cannot be read: {}", problem.what()));
  }
}

}  // namespace titan
