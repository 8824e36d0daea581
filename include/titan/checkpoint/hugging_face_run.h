// A run's weights from and into Hugging Face's form, on all ranks together and under any layout: each rank reads just
// the boxes that it holds, and hands over just those.
#pragma once

#include <filesystem>
#include <optional>
#include <span>

#include "titan/checkpoint/block_scaled_weights.h"
#include "titan/checkpoint/hugging_face_export.h"
#include "titan/checkpoint/load.h"
#include "titan/checkpoint/training_state.h"

namespace titan {

struct HuggingFaceWeights {
  std::string counts;                          // of tensors, in words
  bool verified = false;                       // every byte read has the hash it was saved with
  std::optional<int64_t> step = std::nullopt;  // of the run that ended with it, where this program wrote it
};

/// What each rank does below. Throws what SafetensorsFolder does, MismatchError when it is another model; that all of
/// it fits is rank 0's to see.
HuggingFaceWeights read_hugging_face(Storage& storage, const std::filesystem::path& folder,
                                     std::optional<ScaleBlock> quantised, const ForeignModel& model,
                                     std::span<const SavedParameter> parameters, int64_t rank);

/// Fills the masters of `parameters` from the safetensors in `folder`, quantised in such blocks or not at all. Throws
/// Error(storage), on all ranks alike, when they are damaged or another model's; the masters' content is undefined
/// then.
LoadOutcome load_hugging_face_together(Storage& storage, RankMeeting& meeting, const std::filesystem::path& folder,
                                       std::optional<ScaleBlock> quantised, const ForeignModel& model,
                                       std::span<const SavedParameter> parameters);

/// Writes `state`, a model, as `wanted` says, whose dtype must be that of the state. Every rank first writes its parts
/// to a folder beside `wanted.folder`, as a checkpoint is written, then the ranks share out the files of the export and
/// read the parts that each needs: no tensor passes between ranks but through the storage. That takes the bytes of the
/// model a second time while it lasts.
SaveOutcome save_hugging_face_together(Storage& storage, RankMeeting& meeting, const HuggingFaceExport& wanted,
                                       const CheckpointState& state);

}  // namespace titan
