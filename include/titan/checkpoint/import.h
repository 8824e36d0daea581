// A checkpoint made of weights that lie elsewhere, and weights taken out of one into a plain file: streamed, so that a
// model of any size passes through a bounded memory.
#pragma once

#include "titan/checkpoint/commit.h"
#include "titan/checkpoint/foreign_weights.h"

namespace titan {

/// Writes the model as a checkpoint of step 0, in dtype `type`, and reads all of it back before it is named `folder`,
/// which must not be there. A single process does it, in as many files as keep each piece below 128 MiB. Throws what
/// reading throws, StorageError when the medium fails; then nothing is left behind.
void import_weights(Storage& storage, TensorSource& theirs, const ForeignModel& model, at::ScalarType type,
                    const std::filesystem::path& folder, nlohmann::ordered_json facts);

/// Writes all tensors of `weights` as a state dictionary that torch.load reads, and reads its index back. The file
/// appears whole or not at all; one that is there is an error.
void write_torch_file(Storage& storage, TensorSource& weights, const std::filesystem::path& file);

}  // namespace titan
