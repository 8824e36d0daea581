#include "titan/checkpoint/metadata.h"

#include <algorithm>

#include "titan/base/json.h"
#include "titan/base/ordered_json.h"

namespace titan {

Box whole_box(const std::vector<int64_t>& shape) { return {std::vector<int64_t>(shape.size(), 0), shape}; }

int64_t LogicalTensor::bytes() const { return bytes_of(whole_box(shape)); }

int64_t LogicalTensor::bytes_of(const Box& box) const {
  return box.numel() * static_cast<int64_t>(c10::elementSize(type));
}

std::map<std::string, int64_t> CheckpointIndex::file_ends() const {
  std::map<std::string, int64_t> ends;
  const auto note = [&](const BlobPlace& place) {
    int64_t& end = ends[place.file];
    end = std::max(end, place.offset + place.length);
  };
  for (const auto& [name, place] : values) note(place);
  for (const auto& [name, stored] : tensors) {
    for (const StoredChunk& chunk : stored.chunks) note(chunk.place);
  }
  return ends;
}

namespace {

// To be raised when a program that knows the old number would misread a manifest: it refuses any other.
constexpr int64_t kFormat = 1;
constexpr std::string_view kOpening = " \"xxh3_128\": \"";
constexpr std::string_view kClosing = "\"\n}\n";

/// The last line of a manifest whose preceding text is `text`.
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
  // The last line has the hash of all text before it, so the closing brace and its line break follow by hand.
  text.resize(text.size() - 2);
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
    return manifest_from(parse_ordered_json(bytes));
  } catch (const nlohmann::json::exception& problem) {
    throw DamageError(fmt::format("its manifest cannot be read: {}", problem.what()));
  }
}

}  // namespace titan
