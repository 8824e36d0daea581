// A collective save: the plan (which rank writes which shards, a pure function of the layouts, equal on every rank) and
// the phases of commit.h with the messages of the ranks between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "titan/checkpoint/commit.h"
#include "titan/checkpoint/metadata.h"
#include "titan/checkpoint/store_barrier.h"
#include "titan/ops/parameter.h"
#include "titan/plan/device_mesh.h"

namespace titan {

/// The box of a tensor that a rank holds; nothing or an empty box if it holds none.
using BoxOfRank = std::function<std::optional<Box>(int64_t rank)>;

/// A tensor of the state dict.
struct StateTensor {
  LogicalTensor tensor;
  BoxOfRank box_of;
  at::Tensor local = {};  // this rank's shard [extents of its box] or undefined; not read by the plan of a save
};

/// Each rank's shard of a tensor with a parameter's layout. `stages`: pipeline coordinates of the ranks that hold it;
/// empty: all.
BoxOfRank boxes_of(const TensorLayout& layout, const DeviceMesh& mesh, std::vector<int64_t> stages = {});
/// Every rank holds the whole tensor.
BoxOfRank whole_everywhere(std::vector<int64_t> shape);

/// A box of a tensor that one rank writes.
struct PlannedWrite {
  size_t tensor = 0;  // index into the planned tensors
  Box box;
  int64_t file = 0;  // index of the rank's data file

  bool operator==(const PlannedWrite&) const = default;
};

/// What each rank writes, in the order of its files.
using SavePlan = std::vector<std::vector<PlannedWrite>>;

/// A box that several ranks hold is assigned to the one with the fewest bytes so far, largest tensors first, ties to
/// the lowest rank. A rank has at most `most_files` files, of at least `least_file_bytes` each. The boxes of a tensor
/// must cover it exactly once, otherwise InvariantError. `only`: the plan holds this rank's writes alone, and no memory
/// is needed for those of the others, which only rank 0 needs, for the index.
SavePlan plan_save(std::span<const StateTensor> tensors, int64_t ranks, int64_t most_files = 1,
                   int64_t least_file_bytes = 0, std::optional<int64_t> only = std::nullopt);

/// For `only`: which writes `rank` needs in a save_together.
inline std::optional<int64_t> writes_needed_by(int64_t rank) { return rank == 0 ? std::nullopt : std::optional(rank); }

/// A rank's writes by file; at least one file, which may be empty.
std::vector<std::span<const PlannedWrite>> files_of(std::span<const PlannedWrite> writes);

/// The index of everything that all ranks write under `plan`; values are at the start of rank 0's first file.
CheckpointIndex index_of(const SavePlan& plan, std::span<const StateTensor> tensors,
                         std::span<const SavedValue> values);

/// The rank's shard that `write` writes, on its own device.
at::Tensor local_part(const StateTensor& tensor, const PlannedWrite& write);
/// The same, contiguous, on the CPU.
at::Tensor written_part(const StateTensor& tensor, const PlannedWrite& write);

/// The state dict: the same names in the same order on every rank. Only rank 0's values are written.
struct CheckpointState {
  std::vector<StateTensor> tensors;
  std::vector<SavedValue> values;
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();  // for the manifest
};

struct SaveOutcome {
  int64_t step = 0;
  bool committed = false;
  std::string problem;  // if not committed: rank, what, why; the same on all ranks
  std::filesystem::path folder;
  int64_t bytes = 0;  // of all files
  double seconds = 0;

  std::string sentence() const;
};

/// Writes `state` and commits; collective. `written`: the tensors of this rank's writes, called by the threads that
/// write files, each index once; without it the shards of `state` are written. A storage failure on any rank is
/// reported on all; other errors throw.
SaveOutcome save_together(Storage& storage, RankBarrier& barrier, const SavePlace& place, const CheckpointState& state,
                          const SavePlan& plan, const WrittenTensor& written = nullptr);

// Independent work on several threads.

/// Calls `act(0)` on this thread and each of `act(1)` to `act(count - 1)` on a new thread, and joins them. Rethrows the
/// exception of the lowest number. If a thread cannot be created, its work runs on this one.
void side_by_side(size_t count, const std::function<void(size_t)>& act);

}  // namespace titan
