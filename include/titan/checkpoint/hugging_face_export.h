// A model's weights written as Hugging Face's programs read them: safetensors files of a bounded size with their index,
// and the small files beside them. Streamed, in stretches of rows; a folder that has its name is whole.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "titan/checkpoint/block_scaled_weights.h"
#include "titan/checkpoint/foreign_weights.h"
#include "titan/checkpoint/load.h"
#include "titan/checkpoint/safetensors.h"
#include "titan/checkpoint/save.h"
#include "titan/checkpoint/training_state.h"

namespace titan {

/// What transformers writes at most into one file unless it is told otherwise.
inline constexpr int64_t kDefaultShardBytes = 5'000'000'000;

/// A small file that goes along: config.json, a tokenizer.
struct CompanionFile {
  std::string name;
  std::string content;
};

struct HuggingFaceExport {
  std::filesystem::path folder;  // that it will be
  std::string run;               // see SavePlace
  int64_t step = 0;              // that the weights are from
  bool replace = false;          // a folder of that name gives way; else it is an error
  ForeignModel model;
  std::optional<at::ScalarType> type;  // none: as they are stored
  int64_t most_bytes = kDefaultShardBytes;
  std::vector<CompanionFile> companions;
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();  // for the manifest
};

/// One file of the export.
struct ExportedFile {
  std::string name;
  std::vector<LogicalTensor> tensors;  // under their names
  std::vector<size_t> places;          // in the model's list of tensors

  int64_t bytes() const;
};

/// The tensors in their order, a new file begun where the next one would not fit: model-00001-of-00002.safetensors; a
/// single file is model.safetensors.
std::vector<ExportedFile> plan_export(const ForeignModel& model, const std::vector<at::ScalarType>& types,
                                      int64_t most_bytes);

/// Writes and checks all of it; all ranks call it, each with its own view of the same weights under our names, and each
/// writes some of the files. The outcome has a problem, the same on all ranks, when anything failed; then `folder` is
/// what it was before.
SaveOutcome export_together(Storage& storage, RankBarrier& meeting, const HuggingFaceExport& wanted,
                            TensorSource& weights);

// A run's weights from and into Hugging Face's form, on all ranks together and under any layout: each rank reads just
// the boxes that it holds, and hands over just those.

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
LoadOutcome load_hugging_face_together(Storage& storage, RankBarrier& meeting, const std::filesystem::path& folder,
                                       std::optional<ScaleBlock> quantised, const ForeignModel& model,
                                       std::span<const SavedParameter> parameters);

/// Writes `state`, a model, as `wanted` says, whose dtype must be that of the state. Every rank first writes its parts
/// to a folder beside `wanted.folder`, as a checkpoint is written, then the ranks share out the files of the export and
/// read the parts that each needs: no tensor passes between ranks but through the storage. That takes the bytes of the
/// model a second time while it lasts.
SaveOutcome save_hugging_face_together(Storage& storage, RankBarrier& meeting, const HuggingFaceExport& wanted,
                                       const CheckpointState& state);

}  // namespace titan
