#include "titan/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <tuple>

#include "titan/base/file_kind.h"
#include "titan/base/filesystem.h"
#include "titan/base/json.h"
#include "titan/base/ordered_json.h"
#include "titan/checkpoint/blob.h"

namespace titan {

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<LogicalTensor> described;
  size_t total = 0;
  for (const auto& [name, tensor] : tensors) {
    TITAN_CHECK(tensor.defined(), name);
    described.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
    total += tensor.nbytes();
  }
  std::string bytes = safetensors_header(described, metadata);
  bytes.reserve(bytes.size() + total);
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor host = tensor.detach().cpu().contiguous();
    bytes.append(static_cast<const char*>(host.const_data_ptr()), host.nbytes());
  }
  write_own_file_atomically(path, bytes);
}

namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");

using Json = nlohmann::ordered_json;

/// The longest header that the safetensors library accepts.
constexpr uint64_t kLongestHeader = 100'000'000;

struct TypeName {
  at::ScalarType type;
  const char* name;
};
constexpr std::array<TypeName, 8> kTypes{{{at::kFloat, "F32"},
                                          {at::kDouble, "F64"},
                                          {at::kBFloat16, "BF16"},
                                          {at::kHalf, "F16"},
                                          {at::kFloat8_e4m3fn, "F8_E4M3"},
                                          {at::kLong, "I64"},
                                          {at::kInt, "I32"},
                                          {at::kByte, "U8"}}};

std::optional<at::ScalarType> type_named(const std::string& name) {
  for (const TypeName& known : kTypes) {
    if (name == known.name) return known.type;
  }
  return std::nullopt;
}

/// One header, read entry by entry.
class HeaderReader {
 public:
  explicit HeaderReader(CheckedReader& file) : file_(file) {}

  std::vector<SafetensorsEntry> read() {
    const Json header = parse();
    for (const auto& [name, value] : header.items()) {
      if (name != "__metadata__") entries_.push_back(entry(name, value));
    }
    std::stable_sort(entries_.begin(), entries_.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
      return std::tie(a.offset, a.bytes) < std::tie(b.offset, b.bytes);
    });
    check_cover();
    return std::move(entries_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw DamageError(fmt::format("{}: {}; the file is damaged or not safetensors", file_.path().string(), what));
  }

  [[noreturn]] void refuse_type(const std::string& tensor, const std::string& type) const {
    constexpr std::string_view kUnread = " BOOL I8 I16 U16 U32 U64 F8_E5M2 F8_E8M0 F4 F6_E2M3 F6_E3M2 C64 ";
    if (kUnread.find(fmt::format(" {} ", type)) == kUnread.npos) {
      fail(fmt::format("tensor {} has the unknown type {}", tensor, type));
    }
    throw DamageError(
        fmt::format("{}: tensor {} is of type {}, which is not read here", file_.path().string(), tensor, type));
  }

  Json parse() {
    uint64_t length = 0;
    const auto size = static_cast<uint64_t>(file_.size());
    const FileKind kind = kind_of(file_.read(0, static_cast<int64_t>(std::min<uint64_t>(size, kKindBytes))));
    if (kind != FileKind::safetensors && kind != FileKind::other) {
      throw DamageError(fmt::format("{}: {}", file_.path().string(), describe_kind(kind)));
    }
    if (size < sizeof length) fail("the file is too short");
    std::memcpy(&length, file_.read(0, sizeof length).data(), sizeof length);
    if (length > size - sizeof length) fail("the header is longer than the file");
    if (length > kLongestHeader) fail(fmt::format("the header has {} bytes, more than the format's 100 MB", length));
    begin_ = static_cast<int64_t>(sizeof length + length);
    const std::string text = file_.read(sizeof length, static_cast<int64_t>(length));
    std::string twice;
    Json header;
    try {
      header = parse_ordered_json(text, &twice);
    } catch (const Json::exception& error) {
      fail(fmt::format("the header is not a JSON object ({})", error.what()));
    }
    if (!header.is_object()) fail("the header is not a JSON object");
    if (!twice.empty()) fail(fmt::format("the header has two entries for {}", twice));
    return header;
  }

  SafetensorsEntry entry(const std::string& name, const Json& value) const {
    const auto has = [&](const char* key) { return value.is_object() && value.contains(key); };
    const bool complete = has("dtype") && value["dtype"].is_string() && has("shape") && has("data_offsets");
    if (!complete) fail(fmt::format("the header's entry for tensor {} cannot be read", name));
    const auto type_name = value["dtype"].get<std::string>();
    const std::optional<at::ScalarType> type = type_named(type_name);
    if (!type) refuse_type(name, type_name);
    SafetensorsEntry found{{name, *type, numbers(name, value["shape"])}, 0, 0};
    const std::vector<int64_t> offsets = numbers(name, value["data_offsets"]);
    const int64_t data = file_.size() - begin_;
    // Checked before allocating: a damaged shape may be larger than memory.
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data) {
      fail(fmt::format("tensor {} is outside the file", name));
    }
    found.offset = begin_ + offsets[0];
    found.bytes = offsets[1] - offsets[0];
    if (bytes_of(found.tensor) != found.bytes) fail(fmt::format("tensor {} does not fill its shape", name));
    return found;
  }

  std::vector<int64_t> numbers(const std::string& name, const Json& list) const {
    std::vector<int64_t> values;
    const auto is_size = [](const Json& item) {
      return item.is_number_unsigned() && item.get<uint64_t>() <= std::numeric_limits<int64_t>::max();
    };
    if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_size)) {
      fail(fmt::format("the header's entry for tensor {} cannot be read", name));
    }
    for (const Json& item : list) values.push_back(item.get<int64_t>());
    return values;
  }

  /// Nothing if the product overflows 64 bits.
  static std::optional<int64_t> bytes_of(const LogicalTensor& tensor) {
    auto bytes = static_cast<int64_t>(c10::elementSize(tensor.type));
    for (const int64_t size : tensor.shape) {
      if (__builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
    }
    return bytes;
  }

  /// The tensors must cover the rest of the file exactly once.
  void check_cover() const {
    int64_t reached = begin_;
    for (const SafetensorsEntry& entry : entries_) {
      if (entry.offset < reached) fail(fmt::format("tensor {} overlaps another", entry.tensor.name));
      if (entry.offset > reached) fail(fmt::format("the bytes before tensor {} belong to none", entry.tensor.name));
      reached = entry.offset + entry.bytes;
    }
    if (reached != file_.size()) fail(fmt::format("its last {} bytes belong to no tensor", file_.size() - reached));
  }

  CheckedReader& file_;
  int64_t begin_ = 0;  // of the tensors' bytes
  std::vector<SafetensorsEntry> entries_;
};

}  // namespace

std::vector<SafetensorsEntry> read_safetensors_header(CheckedReader& file) { return HeaderReader(file).read(); }

std::string safetensors_name(at::ScalarType type) {
  for (const TypeName& known : kTypes) {
    if (known.type == type) return known.name;
  }
  throw InvariantError(fmt::format("internal error: no safetensors name for {}", c10::toString(type)));
}

std::string safetensors_header(std::span<const LogicalTensor> tensors,
                               const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();  // without tensors, Json() would be written as null
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const LogicalTensor& tensor : tensors) {
    const int64_t end = offset + tensor.bytes();
    header[tensor.name] = {
        {"dtype", safetensors_name(tensor.type)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // as the library pads it: data that are mapped have aligned elements
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

namespace {

StoredElements elements_of(const SafetensorsEntry& entry) {
  std::vector<int64_t> strides(entry.tensor.shape.size(), 1);
  for (size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * entry.tensor.shape[d];
  return {entry.tensor.type, entry.tensor.shape, std::move(strides), entry.offset, entry.offset, entry.bytes};
}

/// Whether a file holds the model's weights in a form that is not read beside safetensors.
bool is_other_set(const std::string& name) {
  return name.starts_with("pytorch_model") || name == "tf_model.h5" || name == "flax_model.msgpack" ||
         name.ends_with(".gguf") || (name.starts_with("consolidated.") && name != "consolidated.json");
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
  const bool has_both = has(kSafetensorsIndex) && has(kSafetensorsFile);
  // An export of ours says itself which files it has.
  const bool reads_index =
      has(kSafetensorsIndex) && (!has_both || (manifest_ && !manifest_->files.contains(kSafetensorsFile)));
  if (has("adapter_config.json")) {
    throw Error(
        ExitCode::storage,
        fmt::format("{} holds an adapter of PEFT (adapter_config.json), which transformers adds to the weights and "
                    "which is not read here: merge it (merge_and_unload, then save_pretrained), or move its "
                    "files away to take the weights without it",
                    folder_.string()));
  }
  if (has_both) {
    const char* const read = reads_index ? kSafetensorsIndex : kSafetensorsFile;
    const char* const left = reads_index ? kSafetensorsFile : kSafetensorsIndex;
    note_ = fmt::format("{} holds two sets of weights, {} and {}: the first is read{}", folder_.string(), read, left,
                        reads_index ? "" : ", as transformers does");
  }
  for (const StorageEntry& entry : entries) {
    if (!note_.empty() || !is_other_set(entry.name)) continue;
    note_ = fmt::format("{} holds two sets of weights, {} and {}: the first is read, as transformers does",
                        folder_.string(), reads_index ? kSafetensorsIndex : kSafetensorsFile, entry.name);
  }
  if (reads_index) {
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
  const FileKind kind = kind_of(text);
  if (kind != FileKind::other) throw DamageError(fmt::format("{}: {}", shown, describe_kind(kind)));
  const auto index = parse_json(text, /*allow_exceptions=*/false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw DamageError(fmt::format("{} is not a JSON object with a weight_map", shown));
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
