// Writes `.metadata`: an entry for each shard of each tensor, so a run of thousands of ranks has millions. They are
// written one by one, and never held as values of a pickle.
#include <algorithm>
#include <array>

#include "index_names.h"
#include "titan/checkpoint/metadata.h"

namespace titan {
namespace {

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
  return pickle::instance(kIndexProperties,
                          pickle::tuple({pickle::global("torch " + std::string(python_name(type))), std::move(strided),
                                         pickle::boolean(false), std::move(contiguous), pickle::boolean(false)}));
}

PickleRef storage_meta_of(const CheckpointIndex& index) {
  if (!index.has_manifest) return pickle::none();
  return pickle::instance(kIndexMeta, pickle::dictionary({{"checkpoint_id", pickle::none()},
                                                          {"save_id", pickle::text(std::string(kIndexWriter))},
                                                          {"load_id", pickle::none()},
                                                          {"modules", pickle::list({})}}));
}

class IndexWriter {
 public:
  explicit IndexWriter(const PickleStream::Sink& sink) : out_(sink) {}

  void write(const CheckpointIndex& index) {
    open(kIndexMetadata);
    key("state_dict_metadata");
    descriptions(index);
    key("planner_data");
    paths(index);
    key("storage_data");
    places(index);
    key("storage_meta");
    out_.value(*storage_meta_of(index));
    key("version");
    out_.value(*pickle::text(std::string(kIndexMetadataVersion)));
    close();
    out_.finish();
  }

 private:
  /// An object of `type` with fields, each written as its key and a value.
  void open(const std::string& type) {
    out_.open_instance(type);
    out_.open_dictionary();
  }
  void close() {
    out_.close_dictionary();
    out_.close_instance();
  }
  void key(const std::string& name) {
    out_.next_pair();
    out_.shared_text(name);
  }

  void size(const std::vector<int64_t>& values) {
    out_.open_call("torch Size");
    out_.open_tuple();
    out_.open_tuple();
    for (const int64_t value : values) out_.integer(value);
    out_.close_tuple();
    out_.close_tuple();
    out_.close_call();
  }

  void descriptions(const CheckpointIndex& index) {
    out_.open_dictionary();
    for (const auto& [name, stored] : index.tensors) {
      key(name);
      description(stored);
    }
    for (const auto& [name, place] : index.values) {
      key(name);
      open(kIndexValue);
      close();
    }
    out_.close_dictionary();
  }

  void description(const StoredTensor& stored) {
    open(kIndexTensor);
    key("properties");
    out_.value(*properties_of(stored.tensor.type));
    key("size");
    size(stored.tensor.shape);
    key("chunks");
    out_.open_list();
    for (const StoredChunk& chunk : stored.chunks) {
      out_.next_item();
      open(kIndexChunk);
      key("offsets");
      size(chunk.box.offset);
      key("sizes");
      size(chunk.box.extent);
      close();
    }
    out_.close_list();
    close();
  }

  void paths(const CheckpointIndex& index) {
    out_.open_dictionary();
    const auto add = [&](const std::string& name) {
      key(name);
      out_.value(*path_of(name));
    };
    for (const auto& [name, stored] : index.tensors) add(name);
    for (const auto& [name, place] : index.values) add(name);
    out_.close_dictionary();
  }

  /// {MetadataIndex: _StorageInfo}
  void places(const CheckpointIndex& index) {
    out_.open_dictionary();
    for (const auto& [name, place] : index.values) add_place(name, nullptr, 0, place);
    for (const auto& [name, stored] : index.tensors) {
      for (size_t i = 0; i < stored.chunks.size(); ++i) {
        add_place(name, &stored.chunks[i].box.offset, static_cast<int64_t>(i), stored.chunks[i].place);
      }
    }
    out_.close_dictionary();
  }

  /// `offset`: of a chunk; null for a value, which has no number either.
  void add_place(const std::string& name, const std::vector<int64_t>* offset, int64_t number, const BlobPlace& place) {
    out_.next_pair();
    open(kIndexKey);
    key("fqn");
    out_.shared_text(name);
    key("offset");
    offset ? size(*offset) : out_.value(PickleValue());
    key("index");
    offset ? out_.integer(number) : out_.value(PickleValue());
    close();
    open(kIndexStorageInfo);
    key("relative_path");
    out_.shared_text(place.file);
    key("offset");
    out_.integer(place.offset);
    key("length");
    out_.integer(place.length);
    close();
  }

  PickleStream out_;
};

}  // namespace

void write_index(const CheckpointIndex& index, const PickleStream::Sink& sink) { IndexWriter(sink).write(index); }

std::string write_index(const CheckpointIndex& index) {
  std::string bytes;
  write_index(index, [&](std::string_view part) { bytes += part; });
  return bytes;
}

}  // namespace titan
