// Reads `.metadata`, which has an entry for each shard of each tensor, millions in a run of thousands of ranks: they
// are taken out into compact tables while the pickle is read (index_writer.cpp).
#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <unordered_map>

#include "index_names.h"
#include "titan/base/file_kind.h"
#include "titan/base/text.h"
#include "titan/checkpoint/metadata.h"

namespace titan {
namespace {

using Kind = PickleValue::Kind;

[[noreturn]] void fail(const std::string& what) { throw DamageError(what); }

// A pickle may hold one value in many places, so a small file may stand for much work: what follows bounds it.

/// More fields than any of these objects has, more dimensions than a tensor has (64 in torch), a longer name than any.
constexpr size_t kMostItems = 256, kLongestName = 4096;

/// A row of a table that is not there.
constexpr uint32_t kNoRow = std::numeric_limits<uint32_t>::max();

/// True if it is an object of `type` whose state has been set: it does not change any more.
bool is_filled(const PickleValue& object, std::string_view type) {
  return object.is_object(type) && object.items.size() == 2;
}

/// A field of an object of Python's `type`, whose state is a dictionary of its fields; null if it has none.
const PickleValue* field_or_null(const PickleValue& object, std::string_view type, std::string_view name) {
  if (!is_filled(object, type)) fail(fmt::format("it holds something instead of a {}", type));
  if (object.items[1]->items.size() > kMostItems) fail(fmt::format("a {} has too many fields", type));
  return object.items[1]->find(name);
}

const PickleValue& field(const PickleValue& object, std::string_view type, std::string_view name) {
  const PickleValue* found = field_or_null(object, type, name);
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
  const bool fits = is_filled(properties, kIndexProperties) && properties.items[1]->is(Kind::tuple) &&
                    !properties.items[1]->items.empty();
  constexpr std::string_view kTorch = "torch ";
  if (!fits || !properties.items[1]->items[0]->text.starts_with(kTorch)) fail("a tensor has no dtype");
  return type_named(properties.items[1]->items[0]->text.substr(kTorch.size()));
}

bool names_manifest(const PickleValue& metadata) {
  const PickleValue* meta = metadata.items.at(1)->find("storage_meta");
  if (!meta || !is_filled(*meta, kIndexMeta)) return false;
  const PickleValue* writer = meta->items[1]->find("save_id");
  return writer && writer->is(Kind::text) && writer->text == kIndexWriter;
}

void check_box(const LogicalTensor& tensor, const Box& box) {
  bool inside = box.offset.size() == tensor.shape.size() && box.extent.size() == tensor.shape.size();
  for (size_t d = 0; inside && d < tensor.shape.size(); ++d) {
    inside = box.offset[d] <= tensor.shape[d] && box.extent[d] <= tensor.shape[d] - box.offset[d];
  }
  if (!inside) fail(fmt::format("a chunk of {} is outside of it", tensor.name));
}

/// Rows that occur often, each kept once.
template <class Row>
class DistinctRows {
 public:
  uint32_t number_of(const Row& row) {
    const auto [found, is_new] = numbers_.try_emplace(row, static_cast<uint32_t>(rows_.size()));
    if (is_new) rows_.push_back(&found->first);
    if (rows_.size() >= kNoRow) fail("it has too many names and shapes");
    return found->second;
  }
  const Row& operator[](uint32_t number) const { return *rows_.at(number); }
  size_t size() const { return rows_.size(); }

 private:
  std::map<Row, uint32_t> numbers_;  // a map does not move its keys
  std::vector<const Row*> rows_;
};

struct ChunkRow {
  uint32_t offset, extent;  // among the shapes
};

/// A key of storage_data and what is stored there.
struct PlaceRow {
  uint32_t name, offset;  // offset: among the shapes; kNoRow for a value
  uint32_t hint;          // the chunk's number; other writers may leave it out or give a wrong one
  uint32_t file;
  int64_t begin, length;
};

/// The chunks and places of an index, in rows of 8 and 32 bytes.
class IndexTables : public PickleTaker {
 public:
  bool take_item(PickleValue& list, const PickleValue& item) override {
    if (!is_filled(item, kIndexChunk)) return false;
    table_of(chunks_, list)
        .push_back(
            {shape_number(field(item, kIndexChunk, "offsets")), shape_number(field(item, kIndexChunk, "sizes"))});
    return true;
  }

  bool take_pair(PickleValue& dictionary, const PickleValue& key, const PickleValue& info) override {
    if (!is_filled(key, kIndexKey)) return false;
    PlaceRow row{names_.number_of(text_of(field(key, kIndexKey, "fqn"))), kNoRow, kNoRow, 0, 0, 0};
    const PickleValue* offset = field_or_null(key, kIndexKey, "offset");
    if (offset && !offset->is(Kind::none)) row.offset = shape_number(*offset);
    const PickleValue* hint = field_or_null(key, kIndexKey, "index");
    const bool is_hint = hint && hint->is(Kind::integer) && hint->integer >= 0 && hint->integer < kNoRow;
    if (is_hint) row.hint = static_cast<uint32_t>(hint->integer);
    row.file = file_number(text_of(field(info, kIndexStorageInfo, "relative_path")));
    row.begin = count_of(field(info, kIndexStorageInfo, "offset"));
    row.length = count_of(field(info, kIndexStorageInfo, "length"));
    const PickleValue* transforms = field_or_null(info, kIndexStorageInfo, "transform_descriptors");
    if (transforms && !transforms->is(Kind::none)) fail("its data files are transformed (compressed?)");
    if (row.length > std::numeric_limits<int64_t>::max() - row.begin) fail("a chunk has an impossible offset");
    table_of(places_, dictionary).push_back(row);
    return true;
  }

  /// Those of a list that was read; it must hold nothing else.
  const std::vector<ChunkRow>& chunks_of(const PickleValue& list) const {
    if (!list.is(Kind::list)) fail("chunks are not a list");
    if (!list.items.empty()) fail(fmt::format("it holds something instead of a {}", kIndexChunk));
    return list.integer == 0 ? no_chunks_ : chunks_.at(static_cast<size_t>(list.integer) - 1);
  }
  const std::deque<PlaceRow>& places_of(const PickleValue& dictionary) const {
    if (!dictionary.is(Kind::dictionary)) fail("its index is not a dictionary");
    if (!dictionary.items.empty()) fail(fmt::format("it holds something instead of a {}", kIndexKey));
    return dictionary.integer == 0 ? no_places_ : places_.at(static_cast<size_t>(dictionary.integer) - 1);
  }

  const std::string& name(const PlaceRow& row) const { return names_[row.name]; }
  BlobPlace place(const PlaceRow& row) const { return {files_[row.file], row.begin, row.length}; }
  Box box(const ChunkRow& row) const { return {shapes_[row.offset], shapes_[row.extent]}; }

 private:
  template <class Table>
  static Table& table_of(std::deque<Table>& tables, PickleValue& owner) {
    if (owner.integer == 0) {
      tables.emplace_back();
      owner.integer = static_cast<int64_t>(tables.size());
    }
    return tables[static_cast<size_t>(owner.integer) - 1];
  }

  uint32_t shape_number(const PickleValue& value) { return shapes_.number_of(counts_of(value)); }

  uint32_t file_number(const std::string& file) {
    const size_t before = files_.size();
    const uint32_t number = files_.number_of(file);
    if (files_.size() == before) return number;
    // A NUL byte ends a text for C: what follows it would be part neither of the name that is opened nor of a message.
    if (printable(file) != file) {
      fail(fmt::format("the data file {} has characters in its name that none needs", printable(file)));
    }
    const std::filesystem::path path(file);
    if (path.filename() != path || file.empty() || file == "." || file == "..") {
      fail(fmt::format("the data file {} is outside the checkpoint's folder", file));
    }
    return number;
  }

  DistinctRows<std::string> names_, files_;
  DistinctRows<std::vector<int64_t>> shapes_;
  std::deque<std::vector<ChunkRow>> chunks_;  // of each list that has some
  std::deque<std::deque<PlaceRow>> places_;   // of each dictionary that has some; a deque has no spare half
  std::vector<ChunkRow> no_chunks_;
  std::deque<PlaceRow> no_places_;
};

/// Assigns the places to chunks and values.
class IndexBuilder {
 public:
  IndexBuilder(const IndexTables& tables, const std::deque<PlaceRow>& places)
      : tables_(tables), places_(places), unplaced_(places.size()) {
    if (places.size() >= kNoRow) fail("it has too many chunks");
  }

  void describe(const std::string& name, const PickleValue& description) {
    if (description.is_object(kIndexValue)) {
      index_.values[name] = {};
    } else {
      described_.insert_or_assign(name, tensor_from(name, description));
    }
  }

  CheckpointIndex build() && {
    for (uint32_t row = 0; row < places_.size(); ++row) place(row);
    for (const auto& [name, place] : index_.values) {
      if (place.file.empty()) fail(fmt::format("{} has no place", name));
    }
    for (auto& [name, described] : described_) index_.tensors.emplace(name, stored(described));
    return std::move(index_);
  }

 private:
  struct Described {
    LogicalTensor tensor;
    const std::vector<ChunkRow>* chunks;
    std::vector<uint32_t> places;  // of each chunk; kNoRow: it has none yet
    /// Chunks by offset, the first one last: filled if keys have no hint, or a wrong one.
    std::unordered_map<uint32_t, std::vector<uint32_t>> by_offset;
  };

  Described tensor_from(const std::string& name, const PickleValue& value) {
    LogicalTensor tensor{name, dtype_of(field(value, kIndexTensor, "properties")),
                         counts_of(field(value, kIndexTensor, "size"))};
    int64_t bytes = static_cast<int64_t>(c10::elementSize(tensor.type));
    for (const int64_t size : tensor.shape) {
      if (__builtin_mul_overflow(bytes, size, &bytes)) fail(fmt::format("{} has a shape that cannot be", name));
    }
    const std::vector<ChunkRow>& chunks = tables_.chunks_of(field(value, kIndexTensor, "chunks"));
    // There are as many chunks as places: a list that many tensors share would stand for more.
    if (chunks.size() > unplaced_) fail(fmt::format("{} has a chunk without a place", name));
    unplaced_ -= chunks.size();
    for (const ChunkRow& chunk : chunks) check_box(tensor, tables_.box(chunk));
    return {std::move(tensor), &chunks, std::vector<uint32_t>(chunks.size(), kNoRow), {}};
  }

  void place(uint32_t row) {
    const PlaceRow& place = places_[row];
    const std::string& name = tables_.name(place);
    const auto value = index_.values.find(name);
    if (value != index_.values.end()) {
      value->second = tables_.place(place);
      return;
    }
    const auto found = described_.find(name);
    if (found == described_.end()) fail(fmt::format("{} has a place and no description", name));
    if (place.offset == kNoRow) fail(fmt::format("a chunk of {} has no offset", name));
    Described& tensor = found->second;
    const auto fits = [&](uint32_t chunk) {
      return (*tensor.chunks)[chunk].offset == place.offset && tensor.places[chunk] == kNoRow;
    };
    const bool is_at_hint = place.hint < tensor.places.size() && fits(place.hint);
    const uint32_t chunk = is_at_hint ? place.hint : search(tensor, place.offset);
    if (chunk == kNoRow) fail(fmt::format("{} has a chunk that its description lacks", name));
    tensor.places[chunk] = row;
  }

  /// The first chunk at `offset` without a place; kNoRow: there is none.
  static uint32_t search(Described& tensor, uint32_t offset) {
    if (tensor.by_offset.empty()) {
      for (size_t i = tensor.chunks->size(); i-- > 0;) {
        tensor.by_offset[(*tensor.chunks)[i].offset].push_back(static_cast<uint32_t>(i));
      }
    }
    std::vector<uint32_t>& candidates = tensor.by_offset[offset];
    while (!candidates.empty() && tensor.places[candidates.back()] != kNoRow) candidates.pop_back();
    return candidates.empty() ? kNoRow : candidates.back();
  }

  StoredTensor stored(Described& described) const {
    StoredTensor tensor{std::move(described.tensor), {}};
    tensor.chunks.reserve(described.places.size());
    for (size_t i = 0; i < described.places.size(); ++i) {
      const uint32_t row = described.places[i];
      if (row == kNoRow) fail(fmt::format("{} has a chunk without a place", tensor.tensor.name));
      tensor.chunks.push_back({tables_.box((*described.chunks)[i]), tables_.place(places_[row])});
    }
    described.by_offset = {};
    return tensor;
  }

  const IndexTables& tables_;
  const std::deque<PlaceRow>& places_;
  size_t unplaced_;
  std::map<std::string, Described> described_;
  CheckpointIndex index_;
};

}  // namespace

void check_index_begin(std::string_view head) {
  const FileKind kind = kind_of(head);
  if (kind != FileKind::pickle && kind != FileKind::other)
    throw DamageError(fmt::format(".metadata: {}", describe_kind(kind)));
  check_pickle_begin(head);
}

CheckpointIndex read_index(std::string_view bytes) {
  check_index_begin(bytes);
  IndexTables tables;
  const PickleRef metadata = read_pickle(bytes, &tables);
  const PickleValue& descriptions = field(*metadata, kIndexMetadata, "state_dict_metadata");
  if (!descriptions.is(Kind::dictionary)) fail("its index is not a dictionary");
  IndexBuilder builder(tables, tables.places_of(field(*metadata, kIndexMetadata, "storage_data")));
  for (size_t i = 0; i + 1 < descriptions.items.size(); i += 2) {
    builder.describe(text_of(*descriptions.items[i]), *descriptions.items[i + 1]);
  }
  CheckpointIndex index = std::move(builder).build();
  index.has_manifest = names_manifest(*metadata);
  return index;
}

}  // namespace titan
