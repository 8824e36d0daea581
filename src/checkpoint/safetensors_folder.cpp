#include "titan/checkpoint/safetensors_folder.h"

#include <algorithm>
#include <set>

#include "elements.h"
#include "titan/base/json.h"

namespace titan {
namespace {

StoredElements elements_of(const SafetensorsEntry& entry) {
  std::vector<int64_t> strides(entry.tensor.shape.size(), 1);
  for (size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * entry.tensor.shape[d];
  return {entry.tensor.type, entry.tensor.shape, std::move(strides), entry.offset, entry.offset, entry.bytes};
}

[[noreturn]] void fail_without_files(const std::filesystem::path& folder, const std::vector<StorageEntry>& entries) {
  const bool has_pickles = std::any_of(entries.begin(), entries.end(),
                                       [](const StorageEntry& entry) { return entry.name.ends_with(".bin"); });
  throw Error(ExitCode::storage,
              fmt::format("{} holds no {} and no {}{}", folder.string(), kSafetensorsFile, kSafetensorsIndex,
                          has_pickles ? "; its .bin files are not read: save the model with safe_serialization" : ""));
}

}  // namespace

bool is_safetensors_folder(const std::vector<StorageEntry>& entries) {
  return std::any_of(entries.begin(), entries.end(), [](const StorageEntry& entry) {
    return entry.name == kExportManifest || entry.name == kSafetensorsFile || entry.name == kSafetensorsIndex;
  });
}

SafetensorsFolder::SafetensorsFolder(Storage& storage, std::filesystem::path folder)
    : storage_(storage), folder_(std::move(folder)) {
  const std::vector<StorageEntry> entries = storage_.list(folder_);
  const auto has = [&](const char* name) {
    return std::any_of(entries.begin(), entries.end(), [&](const StorageEntry& entry) { return entry.name == name; });
  };
  if (has(kExportManifest)) manifest_ = read_manifest(storage_.read_all(folder_ / kExportManifest));
  if (has(kSafetensorsIndex)) {
    check_index(storage_.read_all(folder_ / kSafetensorsIndex));
  } else if (has(kSafetensorsFile)) {
    open(kSafetensorsFile);
  } else {
    if (manifest_)
      throw DamageError(fmt::format("{} has lost the weights that its {} lists", folder_.string(), kExportManifest));
    fail_without_files(folder_, entries);
  }
}

void SafetensorsFolder::open(const std::string& file) {
  std::optional<FileRecord> record;
  if (manifest_) {
    const auto found = manifest_->files.find(file);
    if (found == manifest_->files.end()) {
      throw DamageError(fmt::format("{} does not name {}", (folder_ / kExportManifest).string(), file));
    }
    record = found->second;
  }
  std::unique_ptr<CheckedReader>& reader = readers_[file];
  reader = std::make_unique<CheckedReader>(storage_, folder_ / file, std::move(record));
  entries_[file] = read_safetensors_header(*reader);
  for (const SafetensorsEntry& entry : entries_[file]) {
    const std::string& name = entry.tensor.name;
    if (!tensors_.emplace(name, entry.tensor).second) {
      throw DamageError(
          fmt::format("{} holds tensor {}, which another file holds, too", reader->path().string(), name));
    }
    places_[name] = {reader.get(), elements_of(entry)};
  }
}

void SafetensorsFolder::check_index(const std::string& text) {
  const std::string shown = (folder_ / kSafetensorsIndex).string();
  const auto index = parse_json(text, /*allow_exceptions=*/false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw DamageError(fmt::format("{} is no JSON object with a weight_map", shown));
  }
  const nlohmann::json& map = index["weight_map"];
  std::set<std::string> files;
  for (const auto& [name, file] : map.items()) {
    const bool plain = file.is_string() && file.get<std::string>().find('/') == std::string::npos;
    if (!plain) throw DamageError(fmt::format("{} names no file of its folder for tensor {}", shown, name));
    files.insert(file.get<std::string>());
  }
  for (const std::string& file : files) open(file);
  for (const auto& [file, entries] : entries_) {
    for (const SafetensorsEntry& entry : entries) {
      const auto listed = map.find(entry.tensor.name);
      if (listed != map.end() && *listed == file) continue;
      throw DamageError(fmt::format("{} does not say that {} holds tensor {}", shown, file, entry.tensor.name));
    }
  }
  for (const auto& [name, file] : map.items()) {
    if (!tensors_.contains(name)) {
      throw DamageError(
          fmt::format("{} says that {} holds tensor {}, which it does not", shown, file.get<std::string>(), name));
    }
  }
}

void SafetensorsFolder::read(const std::string& name, const Box& box, const at::Tensor& into) {
  const Place& place = places_.at(name);
  read_elements(*place.file, place.elements, box, into);
}

void SafetensorsFolder::check_all() {
  if (!manifest_) return;
  for (const auto& [file, record] : manifest_->files) {
    std::unique_ptr<CheckedReader>& reader = readers_[file];
    if (!reader) reader = std::make_unique<CheckedReader>(storage_, folder_ / file, record);
    reader->check_all();
  }
}

}  // namespace titan
