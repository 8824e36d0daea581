// States for the tests of checkpoints: a small model's tensors under many layouts, rank by rank in one process. A
// tensor's numbers are a function of its name and the state's version alone, so any part of it can be checked anywhere.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "support/tensors.h"
#include "titan/checkpoint/checkpointer.h"
#include "titan/checkpoint/training_state.h"

namespace titan {

/// One layout of the small model over the ranks of a mesh.
struct TestLayout {
  std::string name;
  ParallelDegrees degrees;
  int64_t ranks = 1;
  /// The axes over which the feed-forward weights are sharded, a second weight group.
  std::vector<MeshAxis> second_over = {MeshAxis::dp_shard, MeshAxis::cp};
};

/// single, ddp, fsdp, hsdp, tp, pp and mixtures, with shards that do not divide and ranks that hold nothing, and with a
/// second weight group on other axes.
std::vector<TestLayout> test_layouts();

/// The small model without its shards: parameters, their moments, a counter. Under pipelines each stage has some of the
/// names, and the embedding is on the first and the last.
std::vector<StateTensor> test_tensors(const TestLayout& layout);

/// The whole tensor of that name in `version`; tests/reference/checkpoint_test.py has the same formula.
at::Tensor whole_tensor(const LogicalTensor& tensor, int64_t version);

/// What `rank` has of it all.
CheckpointState test_state(const TestLayout& layout, int64_t rank, int64_t version);

/// What `rank` wants, with memory of other content to read it into.
std::vector<LoadTarget> test_targets(const TestLayout& layout, int64_t rank);

/// Every target holds what `version` has there.
::testing::AssertionResult holds_version(const std::vector<LoadTarget>& targets, int64_t version);

/// The state of a run with these parameters and an optimizer whose settings differ from the defaults.
CheckpointState run_state(std::span<const SavedParameter> parameters, const SavedProgress& progress);

/// The values that rank 0 saves with it.
std::vector<SavedValue> test_values(const TestLayout& layout, int64_t version);

/// Options of a checkpointer in the folder "root" whose ranks write two files where they have more than one tensor.
CheckpointerOptions test_options(SaveMode mode, std::function<void(const SaveOutcome&)> saved);

/// Saves as all ranks of the layout, file by file, without a process group: the phases of commit.h.
void save_as_all_ranks(Storage& storage, const SavePlace& place, const TestLayout& layout, int64_t version);

}  // namespace titan
