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
#include "titan/checkpoint/training_state.h"

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

/// Which torchtitan is to load a checkpoint.
struct TorchtitanForm {
  TorchtitanRelease release = TorchtitanRelease::february_2026;
  int64_t data_ranks = 0;       // data-parallel ranks; 0: as many as saved it
  bool decoupled_decay = true;  // AdamW's, for an optimizer state that does not say: PyTorch before 2.7
};
/// Writes a checkpoint of any program and release with all that a strict load demands; `tables` are among the model's
/// tensors.
void write_for_torchtitan(Storage& storage, OpenCheckpoint& checkpoint, const TorchtitanForm& form,
                          const std::map<std::string, at::Tensor>& tables, const std::filesystem::path& folder);

/// Writes all tensors of `weights` as a state dictionary that torch.load reads, and reads its index back. The file
/// appears whole or not at all; one that is there is an error.
void write_torch_file(Storage& storage, TensorSource& weights, const std::filesystem::path& file);

}  // namespace titan
