#include "titan/checkpoint/metadata.h"

#include <algorithm>
#include <array>
#include <deque>
#include <iterator>
#include <limits>
#include <map>

#include "titan/base/file_kind.h"
#include "titan/base/json.h"
#include "titan/base/ordered_json.h"

namespace titan {
namespace {

using Kind = PickleValue::Kind;

constexpr std::string_view kModule = "torch.distributed.checkpoint.metadata ";
constexpr std::string_view kStorageInfo = "torch.distributed.checkpoint.filesystem _StorageInfo";
constexpr std::string_view kVersion = "1.0.0";
// In the place of the random identifier that Python gives a save: readers know by it that a missing manifest is damage.
constexpr std::string_view kWriter = "titan, with manifest.json";

std::string type_in_metadata(std::string_view name) { return std::string(kModule) + std::string(name); }

// ---- Writing ----

PickleRef instance(std::string_view type, const std::vector<std::pair<std::string, PickleRef>>& fields) {
  return pickle::instance(type_in_metadata(type), pickle::dictionary(fields));
}

PickleRef size_of(const std::vector<int64_t>& values) {
  std::vector<PickleRef> items;
  for (int64_t value : values) items.push_back(pickle::integer(value));
  return pickle::call("torch Size", {pickle::tuple(std::move(items))});
}

/// The flattened name as the path in the nested dictionary that Python saved: ("optimizer", "state.w.exp_avg").
PickleRef path_of(const std::string& name) {
  constexpr std::array<std::string_view, 5> kStates{"model", "optimizer", "lr_scheduler", "dataloader", "train_state"};
  const size_t dot = name.find('.');
  const std::string first = name.substr(0, dot);
  const bool nested = dot != std::string::npos && std::find(kStates.begin(), kStates.end(), first) != kStates.end();
  if (!nested) return pickle::tuple({pickle::text(name)});
  return pickle::tuple({pickle::text(first), pickle::text(name.substr(dot + 1))});
}

PickleRef properties_of(at::ScalarType type) {
  PickleRef strided = pickle::call("torch.serialization _get_layout", {pickle::text("torch.strided")});
  PickleRef contiguous = pickle::call(type_in_metadata("_MEM_FORMAT_ENCODING"), {pickle::integer(0)});
  return pickle::instance(type_in_metadata("TensorProperties"),
                          pickle::tuple({pickle::global("torch " + std::string(python_name(type))), std::move(strided),
                                         pickle::boolean(false), std::move(contiguous), pickle::boolean(false)}));
}

PickleRef description_of(const StoredTensor& stored) {
  std::vector<PickleRef> chunks;
  for (const StoredChunk& chunk : stored.chunks) {
    chunks.push_back(instance("ChunkStorageMetadata",
                              {{"offsets", size_of(chunk.box.offset)}, {"sizes", size_of(chunk.box.extent)}}));
  }
  return instance("TensorStorageMetadata", {{"properties", properties_of(stored.tensor.type)},
                                            {"size", size_of(stored.tensor.shape)},
                                            {"chunks", pickle::list(std::move(chunks))}});
}

PickleRef info_of(const BlobPlace& place) {
  return pickle::instance(std::string(kStorageInfo), pickle::dictionary({{"relative_path", pickle::text(place.file)},
                                                                         {"offset", pickle::integer(place.offset)},
                                                                         {"length", pickle::integer(place.length)}}));
}

/// {MetadataIndex: _StorageInfo}: built by hand, since the keys are objects.
PickleRef places_of(const CheckpointIndex& index) {
  PickleValue places{.kind = Kind::dictionary, .text = {}, .items = {}};
  for (const auto& [name, place] : index.values) {
    places.items.push_back(instance(
        "MetadataIndex", {{"fqn", pickle::text(name)}, {"offset", pickle::none()}, {"index", pickle::none()}}));
    places.items.push_back(info_of(place));
  }
  for (const auto& [name, stored] : index.tensors) {
    for (size_t i = 0; i < stored.chunks.size(); ++i) {
      const StoredChunk& chunk = stored.chunks[i];
      places.items.push_back(instance("MetadataIndex", {{"fqn", pickle::text(name)},
                                                        {"offset", size_of(chunk.box.offset)},
                                                        {"index", pickle::integer(static_cast<int64_t>(i))}}));
      places.items.push_back(info_of(chunk.place));
    }
  }
  return std::make_shared<const PickleValue>(std::move(places));
}

PickleRef storage_meta_of(const CheckpointIndex& index) {
  if (!index.has_manifest) return pickle::none();
  return instance("StorageMeta", {{"checkpoint_id", pickle::none()},
                                  {"save_id", pickle::text(std::string(kWriter))},
                                  {"load_id", pickle::none()},
                                  {"modules", pickle::list({})}});
}

// ---- Reading ----

[[noreturn]] void fail(const std::string& what) { throw DamageError(what); }

// A pickle may hold one value in many places, so a small file may stand for much work: what follows bounds it.

/// More fields than any of these objects has, more dimensions than a tensor has (64 in torch), a longer name than any.
constexpr size_t kMostItems = 256, kLongestName = 4096;

/// A field of an object of Python's `type`, whose state is a dictionary of its fields.
const PickleValue& field(const PickleValue& object, std::string_view type, std::string_view name) {
  if (!object.is_object(type) || object.items.size() != 2)
    fail(fmt::format("it holds something instead of a {}", type));
  if (object.items[1]->items.size() > kMostItems) fail(fmt::format("a {} has too many fields", type));
  const PickleValue* found = object.items[1]->find(name);
  if (!found) fail(fmt::format("a {} has no {}", type, name));
  return *found;
}

const std::string& text_of(const PickleValue& value) {
  if (!value.is(Kind::text)) fail("a name is not text");
  if (value.text.size() > kLongestName) fail(fmt::format("a name has {} bytes", value.text.size()));
  return value.text;
}

int64_t count_of(const PickleValue& value) {
  if (!value.is(Kind::integer) || value.integer < 0) fail("an offset or a size is not a natural number");
  return value.integer;
}

std::vector<int64_t> counts_of(const PickleValue& value) {
  if (!value.is(Kind::tuple)) fail("a shape is not a tuple");
  if (value.items.size() > kMostDimensions) fail(fmt::format("a shape has {} dimensions", value.items.size()));
  std::vector<int64_t> counts;
  for (const PickleRef& item : value.items) counts.push_back(count_of(*item));
  return counts;
}

at::ScalarType dtype_of(const PickleValue& properties) {
  const bool fits = properties.is_object(type_in_metadata("TensorProperties")) && properties.items.size() == 2 &&
                    properties.items[1]->is(Kind::tuple) && !properties.items[1]->items.empty();
  constexpr std::string_view kTorch = "torch ";
  if (!fits || !properties.items[1]->items[0]->text.starts_with(kTorch)) fail("a tensor has no dtype");
  return type_named(properties.items[1]->items[0]->text.substr(kTorch.size()));
}

bool names_manifest(const PickleValue& metadata) {
  const PickleValue* meta = metadata.items.at(1)->find("storage_meta");
  if (!meta || !meta->is_object(type_in_metadata("StorageMeta")) || meta->items.size() != 2) return false;
  const PickleValue* writer = meta->items[1]->find("save_id");
  return writer && writer->is(Kind::text) && writer->text == kWriter;
}

void check_box(const LogicalTensor& tensor, const Box& box) {
  bool inside = box.offset.size() == tensor.shape.size() && box.extent.size() == tensor.shape.size();
  for (size_t d = 0; inside && d < tensor.shape.size(); ++d) {
    inside = box.offset[d] <= tensor.shape[d] && box.extent[d] <= tensor.shape[d] - box.offset[d];
  }
  if (!inside) fail(fmt::format("a chunk of {} is outside of it", tensor.name));
}

/// `places`: how many chunks may still come, as many as have a place.
StoredTensor tensor_from(const std::string& name, const PickleValue& value, size_t& places) {
  const std::string type = type_in_metadata("TensorStorageMetadata");
  StoredTensor stored{{name, dtype_of(field(value, type, "properties")), counts_of(field(value, type, "size"))}, {}};
  int64_t bytes = static_cast<int64_t>(c10::elementSize(stored.tensor.type));
  for (int64_t size : stored.tensor.shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) fail(fmt::format("{} has a shape that cannot be", name));
  }
  const PickleValue& chunks = field(value, type, "chunks");
  if (!chunks.is(Kind::list)) fail("chunks are not a list");
  if (chunks.items.size() > places) fail(fmt::format("{} has a chunk without a place", name));
  places -= chunks.items.size();
  const std::string chunk_type = type_in_metadata("ChunkStorageMetadata");
  for (const PickleRef& chunk : chunks.items) {
    Box box{counts_of(field(*chunk, chunk_type, "offsets")), counts_of(field(*chunk, chunk_type, "sizes"))};
    check_box(stored.tensor, box);
    stored.chunks.push_back({std::move(box), {}});
  }
  return stored;
}

BlobPlace place_from(const PickleValue& info) {
  BlobPlace place{text_of(field(info, kStorageInfo, "relative_path")), count_of(field(info, kStorageInfo, "offset")),
                  count_of(field(info, kStorageInfo, "length"))};
  const std::filesystem::path path(place.file);
  if (path.filename() != path || place.file.empty() || place.file == "." || place.file == "..") {
    fail(fmt::format("the data file {} is outside the checkpoint's folder", place.file));
  }
  const PickleValue* transforms = info.items[1]->find("transform_descriptors");
  if (transforms && !transforms->is(Kind::none)) fail("its data files are transformed (compressed?)");
  if (place.length > std::numeric_limits<int64_t>::max() - place.offset) fail("a chunk has an impossible offset");
  return place;
}

/// Assigns byte ranges to the chunks and values of an index.
class Placement {
 public:
  explicit Placement(CheckpointIndex& index) : index_(index) {}

  /// `key`: a MetadataIndex.
  void set(const PickleValue& key, BlobPlace place) {
    const std::string type = type_in_metadata("MetadataIndex");
    const std::string& name = text_of(field(key, type, "fqn"));
    const auto value = index_.values.find(name);
    if (value != index_.values.end()) {
      value->second = std::move(place);
      return;
    }
    const auto tensor = index_.tensors.find(name);
    if (tensor == index_.tensors.end()) fail(fmt::format("{} has a place and no description", name));
    const std::vector<int64_t> offset = counts_of(field(key, type, "offset"));
    std::vector<StoredChunk>& chunks = tensor->second.chunks;
    // The key's index is a hint that saves a search; other writers may leave it out or give a wrong one.
    const PickleValue* hint = key.items[1]->find("index");
    const bool is_hint = hint && hint->is(Kind::integer) && hint->integer >= 0 && hint->integer < std::ssize(chunks);
    StoredChunk* found = is_hint ? &chunks[static_cast<size_t>(hint->integer)] : nullptr;
    if (!found || found->box.offset != offset || !found->place.file.empty()) found = search(name, chunks, offset);
    if (!found) fail(fmt::format("{} has a chunk that its description lacks", name));
    found->place = std::move(place);
  }

 private:
  /// The first chunk at `offset` without a place; null: there is none.
  StoredChunk* search(const std::string& name, std::vector<StoredChunk>& chunks, const std::vector<int64_t>& offset) {
    const auto [known, is_new] = by_offset_.try_emplace(name);
    for (size_t i = 0; is_new && i < chunks.size(); ++i) known->second[chunks[i].box.offset].push_back(i);
    std::deque<size_t>& candidates = known->second[offset];
    while (!candidates.empty()) {
      StoredChunk& chunk = chunks[candidates.front()];
      if (chunk.place.file.empty()) return &chunk;
      candidates.pop_front();
    }
    return nullptr;
  }

  CheckpointIndex& index_;
  /// The chunks of tensors whose keys have no hint, or a wrong one.
  std::map<std::string, std::map<std::vector<int64_t>, std::deque<size_t>>> by_offset_;
};

}  // namespace

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

std::string write_index(const CheckpointIndex& index) {
  std::vector<std::pair<std::string, PickleRef>> descriptions, paths;
  for (const auto& [name, stored] : index.tensors) descriptions.emplace_back(name, description_of(stored));
  for (const auto& [name, place] : index.values) {
    descriptions.emplace_back(name, instance("BytesStorageMetadata", {}));
  }
  for (const auto& [name, unused] : descriptions) paths.emplace_back(name, path_of(name));
  return write_pickle(instance("Metadata", {{"state_dict_metadata", pickle::dictionary(descriptions)},
                                            {"planner_data", pickle::dictionary(paths)},
                                            {"storage_data", places_of(index)},
                                            {"storage_meta", storage_meta_of(index)},
                                            {"version", pickle::text(std::string(kVersion))}}));
}

CheckpointIndex read_index(std::string_view bytes) {
  const FileKind kind = kind_of(bytes);
  if (kind != FileKind::pickle && kind != FileKind::other)
    throw DamageError(fmt::format(".metadata: {}", describe_kind(kind)));
  const PickleRef metadata = read_pickle(bytes);
  const std::string type = type_in_metadata("Metadata");
  const PickleValue& descriptions = field(*metadata, type, "state_dict_metadata");
  const PickleValue& places = field(*metadata, type, "storage_data");
  if (!descriptions.is(Kind::dictionary) || !places.is(Kind::dictionary)) fail("its index is not a dictionary");
  CheckpointIndex index;
  index.has_manifest = names_manifest(*metadata);
  size_t unplaced = places.items.size() / 2;
  for (size_t i = 0; i < descriptions.items.size(); i += 2) {
    const std::string& name = text_of(*descriptions.items[i]);
    const PickleValue& description = *descriptions.items[i + 1];
    if (description.is_object(type_in_metadata("BytesStorageMetadata"))) {
      index.values[name] = {};
    } else {
      index.tensors[name] = tensor_from(name, description, unplaced);
    }
  }
  Placement placement(index);
  for (size_t i = 0; i < places.items.size(); i += 2) {
    placement.set(*places.items[i], place_from(*places.items[i + 1]));
  }
  for (const auto& [name, place] : index.values) {
    if (place.file.empty()) fail(fmt::format("{} has no place", name));
  }
  for (const auto& [name, stored] : index.tensors) {
    for (const StoredChunk& chunk : stored.chunks) {
      if (chunk.place.file.empty()) fail(fmt::format("{} has a chunk without a place", name));
    }
  }
  return index;
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
