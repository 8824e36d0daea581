// Who writes what: a pure function of the layouts. Every rank computes the same plan, so nobody has to be asked, and
// rank 0 knows where every blob of every file lies.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "titan/checkpoint/index.h"
#include "titan/distributed/device_mesh.h"
#include "titan/ops/parameter.h"

namespace titan {

/// The box of a tensor that a rank holds; nothing, or an empty one, where it holds none of it.
using BoxOfRank = std::function<std::optional<Box>(int64_t rank)>;

struct PlacedTensor {
  LogicalTensor tensor;
  BoxOfRank box_of;
};

/// Where a parameter's shards lie, for tensors that are cut as it is. `stages`: the pipeline stages (coordinates along
/// pp) whose ranks hold it; none: all.
BoxOfRank boxes_of(const TensorLayout& layout, const DeviceMesh& mesh, std::vector<int64_t> stages = {});
/// All `ranks` hold all of it.
BoxOfRank whole_everywhere(std::vector<int64_t> shape);

struct PlannedWrite {
  size_t tensor = 0;  // index into the tensors planned
  Box box;
  int64_t file = 0;  // which of its rank's data files it goes to

  bool operator==(const PlannedWrite&) const = default;
};

/// Into how many files a rank's bytes are cut: as many as have `least_bytes`, at most `most`.
struct FileSplit {
  int64_t most = 1;
  int64_t least_bytes = 0;
};

/// What each rank writes, in the order of its files. Boxes that several ranks hold go to the holder with the fewest
/// bytes so far, the largest tensors first, ties to the lowest rank. The boxes of a tensor must cover it exactly once:
/// anything else is an InvariantError.
struct SavePlan {
  std::vector<std::vector<PlannedWrite>> writes;  // by rank

  int64_t bytes_of(int64_t rank, std::span<const PlacedTensor> tensors) const;
  /// The rank's writes by file; at least one file, which may be empty.
  std::vector<std::span<const PlannedWrite>> files_of(int64_t rank) const;
};
SavePlan plan_save(std::span<const PlacedTensor> tensors, int64_t ranks, const FileSplit& split = {});

/// A value as it will are in rank 0's first file.
struct SavedValue {
  std::string name;
  std::string blob;
};

std::string data_file(int64_t rank, int64_t file = 0);
/// The index of what all ranks write under `plan`; values lie first in rank 0's first file.
CheckpointIndex index_of(const SavePlan& plan, std::span<const PlacedTensor> tensors,
                         std::span<const SavedValue> values);

}  // namespace titan
