// Checkpoints that a single process makes of what lies elsewhere: another program's weights, or a checkpoint under
// other names; and weights taken out of one into a plain file. Streamed, so that a model of any size passes through a
// bounded memory.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "titan/checkpoint/commit.h"
#include "titan/checkpoint/foreign_weights.h"

namespace titan {

/// What such a checkpoint holds, and how a box of one of its tensors is had: contiguous, on the CPU.
struct StreamedState {
  std::vector<LogicalTensor> tensors;
  std::function<at::Tensor(size_t tensor, const Box& box)> read;
  std::vector<SavedValue> values = {};
  int64_t step = 0;
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();
};

/// Writes it in as many files as keep each piece below 128 MiB, and reads all of it back before it is named `folder`,
/// which must not be there. Throws what reading throws, StorageError when the medium fails; then nothing is left
/// behind.
void write_streamed(Storage& storage, const StreamedState& state, const std::filesystem::path& folder);

/// Writes the model so as a checkpoint of step 0, in dtype `type`.
void import_weights(Storage& storage, TensorSource& theirs, const ForeignModel& model, at::ScalarType type,
                    const std::filesystem::path& folder, nlohmann::ordered_json facts);

/// Writes a run's checkpoint under the names that torchtitan gave in December 2024: `model.NAME`, and `tables` among
/// them, which were saved at that time. Progress is the step and empty lists of losses.
void write_in_names_of_2024(Storage& storage, OpenCheckpoint& checkpoint,
                            const std::map<std::string, at::Tensor>& tables, const std::filesystem::path& folder);

/// Writes all tensors of `weights` as a state dictionary that torch.load reads, and reads its index back. The file
/// appears whole or not at all; one that is there is an error.
void write_torch_file(Storage& storage, TensorSource& weights, const std::filesystem::path& file);

}  // namespace titan
