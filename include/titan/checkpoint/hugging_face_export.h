// Export to and import from Hugging Face's format: safetensors files of bounded size with their index, config and
// tokenizer files. Weights are streamed by rows; a folder with its final name is complete.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "titan/checkpoint/foreign_weights.h"
#include "titan/checkpoint/load.h"
#include "titan/checkpoint/safetensors.h"
#include "titan/checkpoint/save.h"
#include "titan/checkpoint/tensor_source.h"
#include "titan/checkpoint/training_state.h"

namespace titan {

/// The default file size limit of transformers.
inline constexpr int64_t kDefaultShardBytes = 5'000'000'000;

/// A small file of the export: config.json, a tokenizer.
struct CompanionFile {
  std::string name;
  std::string content;
};

struct HuggingFaceExport {
  std::filesystem::path folder;  // final name
  std::string run;               // see SavePlace
  int64_t step = 0;              // of the weights
  bool replace = false;          // replace an existing folder; otherwise it is an error
  ForeignModel model;
  std::optional<at::ScalarType> type;  // none: the stored dtype
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

/// Distributes the tensors, in order, over files of at most the size limit: model-00001-of-00002.safetensors; a single
/// file is model.safetensors.
std::vector<ExportedFile> plan_export(const ForeignModel& model, const std::vector<at::ScalarType>& types,
                                      int64_t most_bytes);

/// Writes and verifies an export. Collective: each rank passes its own view of the same weights under our names and
/// writes some of the files. On failure the outcome has the same problem on all ranks and `folder` is unchanged.
SaveOutcome export_together(Storage& storage, RankBarrier& barrier, const HuggingFaceExport& wanted,
                            TensorSource& weights);

// Import and export of a run's weights, collective and for any layout: each rank reads and passes only its own shards.

struct HuggingFaceWeights {
  std::string counts;                          // of tensors, as text
  bool verified = false;                       // every byte read matched its hash
  std::optional<int64_t> step = std::nullopt;  // of the run that exported it, if it was exported by this program
  std::string note = {};                       // which of two sets of weights was read; empty: there is one
};

/// One rank's part of the import below. Throws what SafetensorsFolder throws, and MismatchError for another model; rank
/// 0 checks that all tensors fit.
HuggingFaceWeights read_hugging_face(Storage& storage, const std::filesystem::path& folder,
                                     std::optional<ScaleBlock> quantised, const ForeignModel& model,
                                     std::span<const SavedParameter> parameters, int64_t rank);

/// Fills the masters of `parameters` from the safetensors in `folder`, block-scaled or not quantised. Throws
/// Error(storage) on all ranks if they are damaged or of another model; then the masters' content is undefined.
LoadOutcome load_hugging_face_together(Storage& storage, RankBarrier& barrier, const std::filesystem::path& folder,
                                       std::optional<ScaleBlock> quantised, const ForeignModel& model,
                                       std::span<const SavedParameter> parameters);

/// Exports `state`, a model, as described by `wanted`, whose dtype must be that of the state. Every rank first saves
/// its shards to a temporary checkpoint beside `wanted.folder`; then each rank writes some of the export's files from
/// the shards it needs. Ranks exchange tensors only through the storage, which temporarily needs twice the bytes of the
/// model.
SaveOutcome save_hugging_face_together(Storage& storage, RankBarrier& barrier, const HuggingFaceExport& wanted,
                                       const CheckpointState& state);

}  // namespace titan
