#include "titan/checkpoint/import.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cerrno>

#include "titan/checkpoint/catalogue.h"
#include "titan/checkpoint/read_checkpoint.h"
#include "titan/checkpoint/tensor_source.h"

namespace titan {
namespace {

constexpr int64_t kImportedPieceBytes = int64_t{128} << 20;
/// Smaller tensors are not cut.
constexpr int64_t kSmallBytes = int64_t{1} << 20;

int64_t bytes_of(const LogicalTensor& tensor) {
  return tensor.bytes_of({std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape});
}

/// Throws StorageError when `path` is there.
void refuse_to_replace(Storage& storage, const std::filesystem::path& path) {
  for (const StorageEntry& entry : storage.list(path.has_parent_path() ? path.parent_path() : ".")) {
    if (entry.name == path.filename()) throw StorageError("write", path, EEXIST);
  }
}

/// The rows of part `rank` of `parts`; small tensors are whole in every part, so the plan picks one.
BoxOfRank rows_of_part(const LogicalTensor& tensor, int64_t parts) {
  if (parts == 1 || tensor.shape.empty() || bytes_of(tensor) <= kSmallBytes) return whole_everywhere(tensor.shape);
  return [shape = tensor.shape, parts](int64_t rank) {
    const ChunkRange rows = ceil_chunk(shape[0], parts, rank);
    Box box{std::vector<int64_t>(shape.size(), 0), shape};
    box.offset[0] = rows.begin;
    box.extent[0] = rows.end - rows.begin;
    return box;
  };
}

/// The writers of one import: one after the other, each with a part of every tensor.
struct Parts {
  std::vector<PlacedTensor> tensors;
  SavePlan plan;
};

Parts cut_into_parts(const std::vector<LogicalTensor>& tensors) {
  Parts parts;
  int64_t largest = 1;
  for (const LogicalTensor& tensor : tensors) largest = std::max(largest, bytes_of(tensor));
  const int64_t count = (largest + kImportedPieceBytes - 1) / kImportedPieceBytes;
  for (const LogicalTensor& tensor : tensors) parts.tensors.push_back({tensor, rows_of_part(tensor, count)});
  parts.plan = plan_save(parts.tensors, count);
  return parts;
}

void write_parts(Storage& storage, const StreamedState& state, const Parts& parts, const SavePlace& place) {
  std::map<std::string, FileRecord> files;
  for (size_t rank = 0; rank < parts.plan.writes.size(); ++rank) {
    const std::vector<PlannedWrite>& writes = parts.plan.writes[rank];
    const WrittenTensor written = [&](size_t index) { return state.read(writes[index].tensor, writes[index].box); };
    const auto number = static_cast<int64_t>(rank);
    const std::span<const SavedValue> values = rank == 0 ? state.values : std::span<const SavedValue>();
    const std::optional<FileRecord> record = write_data(storage, place, number, values, writes.size(), written);
    if (record) files[data_file(number)] = *record;
  }
  const std::string index = write_index(index_of(parts.plan, parts.tensors, state.values));
  storage.write_all(place.temporary() / kIndexFile, index);
  files[kIndexFile] = record_of(index);
  const Manifest manifest{state.step, place.run, state.facts, std::move(files)};
  storage.write_all(place.temporary() / kManifestFile, write_manifest(manifest));
  storage.sync_folder(place.temporary());
}

/// The file under its temporary name, read back.
void write_all_tensors(Storage& storage, TensorSource& weights, const std::vector<LogicalTensor>& tensors,
                       const std::filesystem::path& file) {
  HashingWriter out(storage, file);
  write_state_dict(out, tensors, [&](size_t index, const std::function<void(const at::Tensor&)>& write) {
    const LogicalTensor& tensor = tensors[index];
    const int64_t rows = tensor.shape.empty() ? 1 : tensor.shape[0];
    const int64_t step = rows_at_once(tensor, 1);
    for (int64_t row = 0; row < rows; row += step) {
      const ForeignTensor same{tensor.name, tensor.name, tensor.shape};
      write(read_their_rows(weights, same, row, std::min(step, rows - row)));
    }
  });
  CheckedReader written(storage, file, out.finish());
  written.check_all();
  if (read_state_dict(written).size() != tensors.size()) {
    throw DamageError(fmt::format("{} reads back differently", file.string()));
  }
}

}  // namespace

void write_streamed(Storage& storage, const StreamedState& state, const std::filesystem::path& folder) {
  const Parts parts = cut_into_parts(state.tensors);
  int64_t bytes = 0;
  for (const LogicalTensor& tensor : state.tensors) bytes += bytes_of(tensor);
  for (const SavedValue& value : state.values) bytes += std::ssize(value.blob);
  // The name of its temporary folder is the same every time: what a killed attempt left is removed by the next.
  const SavePlace place{folder.has_parent_path() ? folder.parent_path() : ".", 0, folder.filename().string()};
  refuse_to_replace(storage, folder);
  begin_save(storage, place, bytes);
  try {
    write_parts(storage, state, parts, place);
    OpenCheckpoint(storage, place.temporary(), /*all_sizes=*/true).check_all();
    refuse_to_replace(storage, folder);  // it took its time
    storage.rename(place.temporary(), folder);
    storage.sync_folder(place.root);
  } catch (const Error&) {
    abandon_save(storage, place);
    throw;
  }
}

void import_weights(Storage& storage, TensorSource& theirs, const ForeignModel& model, at::ScalarType type,
                    const std::filesystem::path& folder, nlohmann::ordered_json facts) {
  StreamedState state;
  for (const ForeignTensor& tensor : model.tensors) state.tensors.push_back({tensor.ours, type, tensor.shape});
  state.read = [&](size_t index, const Box& box) {
    at::Tensor tensor = at::empty(box.extent, type);
    read_parameter(theirs, model.tensors[index], box, tensor);
    return tensor;
  };
  state.facts = std::move(facts);
  write_streamed(storage, state, folder);
}

void write_torch_file(Storage& storage, TensorSource& weights, const std::filesystem::path& file) {
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  const std::filesystem::path temporary = folder / fmt::format("{}{}", kSavingPrefix, file.filename().string());
  std::vector<LogicalTensor> tensors;
  int64_t bytes = kSmallBytes;
  for (const auto& [name, tensor] : weights.tensors()) {
    tensors.push_back({name, tensor.type, tensor.shape});
    bytes += bytes_of(tensor);
  }
  refuse_to_replace(storage, file);
  storage.make_folders(folder);
  storage.sync_way_to(folder);
  if (storage.free_bytes(folder) < bytes) throw StorageError(fmt::format("write {} bytes to", bytes), folder, ENOSPC);
  storage.remove(temporary);  // left by an attempt that was killed
  try {
    write_all_tensors(storage, weights, tensors, temporary);
    storage.rename(temporary, file);
    storage.sync_folder(folder);
  } catch (const Error&) {
    try {
      storage.remove(temporary);
    } catch (const StorageError&) {  // the next attempt removes it
    }
    throw;
  }
}

}  // namespace titan
