#include "titan/checkpoint/save_plan.h"

#include <algorithm>
#include <numeric>

#include "titan/base/error.h"

namespace titan {
namespace {

/// A part of a tensor and who has it, ascending.
struct HeldBox {
  Box box;
  std::vector<int64_t> ranks;
};

std::vector<HeldBox> held_boxes(const PlacedTensor& placed, int64_t ranks) {
  std::vector<std::pair<Box, int64_t>> all;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    std::optional<Box> box = placed.box_of(rank);
    if (box && box->numel() > 0) all.emplace_back(std::move(*box), rank);
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first.offset, a.first.extent) < std::tie(b.first.offset, b.first.extent);
  });
  std::vector<HeldBox> held;
  int64_t elements = 0;
  for (auto& [box, rank] : all) {
    if (held.empty() || !(held.back().box == box)) {
      elements += box.numel();
      held.push_back({std::move(box), {}});
    }
    held.back().ranks.push_back(rank);
  }
  const int64_t whole =
      std::accumulate(placed.tensor.shape.begin(), placed.tensor.shape.end(), int64_t{1}, std::multiplies<>());
  TITAN_CHECK(elements == whole && "the boxes cover the tensor once", placed.tensor.name, elements, whole);
  return held;
}

int64_t coordinate_along(const DeviceMesh& mesh, int64_t rank, const std::string& axis) {
  if (axis == "fsdp") {  // over dp_shard and cp together
    return mesh.coordinate(rank, MeshAxis::dp_shard) * mesh.size(MeshAxis::cp) + mesh.coordinate(rank, MeshAxis::cp);
  }
  for (MeshAxis known : kMeshAxes) {
    if (axis == name(known)) return mesh.coordinate(rank, known);
  }
  throw InvariantError(fmt::format("internal error: a layout is cut along {}, which is no axis of the mesh", axis));
}

/// Stretches of about equally many bytes: a write goes to the file that its middle is in.
void cut_into_files(std::vector<PlannedWrite>& writes, std::span<const PlacedTensor> tensors, const FileSplit& split) {
  const auto bytes_of = [&](const PlannedWrite& write) { return tensors[write.tensor].tensor.bytes_of(write.box); };
  int64_t total = 0, before = 0, last = 0, number = -1;
  for (const PlannedWrite& write : writes) total += bytes_of(write);
  const int64_t files = std::clamp<int64_t>(split.least_bytes > 0 ? total / split.least_bytes : split.most, 1,
                                            std::max<int64_t>(1, split.most));
  for (PlannedWrite& write : writes) {
    const int64_t bytes = bytes_of(write);
    const int64_t place = total == 0 ? 0 : std::min(files - 1, (before + bytes / 2) / (total / files + 1));
    if (number < 0 || place != last) ++number;  // a large tensor may leave no middle to the next file
    last = place;
    write.file = number;
    before += bytes;
  }
}

}  // namespace

BoxOfRank boxes_of(const TensorLayout& layout, const DeviceMesh& mesh, std::vector<int64_t> stages) {
  return [layout, mesh, stages = std::move(stages)](int64_t rank) -> std::optional<Box> {
    const bool holds =
        stages.empty() || std::find(stages.begin(), stages.end(), mesh.coordinate(rank, MeshAxis::pp)) != stages.end();
    if (!holds) return std::nullopt;
    std::vector<int64_t> coordinates;
    for (const Split& split : layout.splits()) coordinates.push_back(coordinate_along(mesh, rank, split.axis));
    return layout.box(coordinates);
  };
}

BoxOfRank whole_everywhere(std::vector<int64_t> shape) {
  return [box = Box{std::vector<int64_t>(shape.size(), 0), shape}](int64_t) { return box; };
}

int64_t SavePlan::bytes_of(int64_t rank, std::span<const PlacedTensor> tensors) const {
  int64_t bytes = 0;
  for (const PlannedWrite& write : writes[static_cast<size_t>(rank)]) {
    bytes += tensors[write.tensor].tensor.bytes_of(write.box);
  }
  return bytes;
}

std::vector<std::span<const PlannedWrite>> SavePlan::files_of(int64_t rank) const {
  const std::span<const PlannedWrite> all = writes[static_cast<size_t>(rank)];
  std::vector<std::span<const PlannedWrite>> files;
  size_t begin = 0;
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i].file == all[i - 1].file) continue;
    files.push_back(all.subspan(begin, i - begin));
    begin = i;
  }
  files.push_back(all.subspan(begin));
  return files;
}

SavePlan plan_save(std::span<const PlacedTensor> tensors, int64_t ranks, const FileSplit& split) {
  SavePlan plan;
  plan.writes.resize(static_cast<size_t>(ranks));
  std::vector<int64_t> bytes(static_cast<size_t>(ranks), 0);
  const auto give = [&](int64_t rank, size_t tensor, const Box& box) {
    plan.writes[static_cast<size_t>(rank)].push_back({tensor, box});
    bytes[static_cast<size_t>(rank)] += tensors[tensor].tensor.bytes_of(box);
  };
  struct Shared {
    size_t tensor;
    HeldBox held;
  };
  std::vector<Shared> shared;
  for (size_t t = 0; t < tensors.size(); ++t) {
    for (HeldBox& held : held_boxes(tensors[t], ranks)) {
      if (held.ranks.size() == 1) {
        give(held.ranks[0], t, held.box);
      } else {
        shared.push_back({t, std::move(held)});
      }
    }
  }
  std::stable_sort(shared.begin(), shared.end(), [&](const Shared& a, const Shared& b) {
    return tensors[a.tensor].tensor.bytes_of(a.held.box) > tensors[b.tensor].tensor.bytes_of(b.held.box);
  });
  for (const Shared& one : shared) {
    const auto least = std::min_element(one.held.ranks.begin(), one.held.ranks.end(), [&](int64_t a, int64_t b) {
      return bytes[static_cast<size_t>(a)] < bytes[static_cast<size_t>(b)];
    });
    give(*least, one.tensor, one.held.box);
  }
  // In the order of the tensors: what is read together lies together.
  for (std::vector<PlannedWrite>& writes : plan.writes) {
    std::stable_sort(writes.begin(), writes.end(),
                     [](const PlannedWrite& a, const PlannedWrite& b) { return a.tensor < b.tensor; });
    cut_into_files(writes, tensors, split);
  }
  return plan;
}

std::string data_file(int64_t rank, int64_t file) { return fmt::format("__{}_{}.distcp", rank, file); }

CheckpointIndex index_of(const SavePlan& plan, std::span<const PlacedTensor> tensors,
                         std::span<const SavedValue> values) {
  CheckpointIndex index;
  for (const PlacedTensor& placed : tensors) {
    const bool fresh = index.tensors.emplace(placed.tensor.name, StoredTensor{placed.tensor, {}}).second;
    TITAN_CHECK(fresh && "a name is used once", placed.tensor.name);
  }
  std::map<std::string, int64_t> ends;
  const auto append = [&](const std::string& file, int64_t length) {
    int64_t& end = ends[file];
    end += length;
    return BlobPlace{file, end - length, length};
  };
  for (const SavedValue& value : values) {
    index.values[value.name] = append(data_file(0), static_cast<int64_t>(value.blob.size()));
  }
  for (size_t rank = 0; rank < plan.writes.size(); ++rank) {
    for (const PlannedWrite& write : plan.writes[rank]) {
      const LogicalTensor& tensor = tensors[write.tensor].tensor;
      const int64_t length = tensor_blob_bytes(tensor.type, write.box.extent);
      const BlobPlace place = append(data_file(static_cast<int64_t>(rank), write.file), length);
      index.tensors[tensor.name].chunks.push_back({write.box, place});
    }
  }
  return index;
}

}  // namespace titan
