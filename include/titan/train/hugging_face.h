// A run's model in Hugging Face's format: the files of an export besides the weights. Used by a run that exports its
// last step and by `titan_train convert`.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "titan/checkpoint/hugging_face_export.h"
#include "titan/checkpoint/tensor_source.h"
#include "titan/config/job_config.h"
#include "titan/model/model.h"
#include "titan/train/state_dict.h"

namespace titan {

/// Throws Error(bad_config) for a family that no other program supports.
const StateDictAdapter& adapter_of(const ModelRequest& request);

/// The tokenizer at `place`, a file or a folder; null if none can be opened there.
std::shared_ptr<const Tokenizer> tokenizer_at(const std::filesystem::path& place);

/// The files beside exported weights: config.json, generation_config.json, the tokenizer's files from the configured
/// path, and the configured chat template. A missing tokenizer adds a line to `notes`.
std::vector<CompanionFile> make_companions(const JobConfig& config, const ModelRequest& request, at::ScalarType type,
                                           std::vector<std::string>& notes);

/// For a run that starts from `folder`: throws Error(storage) if it is another kind of folder, a file, or missing,
/// StorageError if it cannot be read.
void expect_their_model(const std::filesystem::path& folder);

/// Compares the folder's config.json, if there is one, with the model that loads its weights, like check_model_facts:
/// throws Error(bad_config) with the differences, or returns a sentence for a warning.
std::string check_settings(const std::filesystem::path& folder, const ModelRequest& request, WeightUse use);

/// The block size of quantised weights according to their config.json; nothing if they are not quantised. `shown`: its
/// name in messages. Throws Error(storage) for an unsupported quantisation.
std::optional<ScaleBlock> quantisation_of(const nlohmann::json& settings, const std::string& shown);

/// The same for a run that starts from `folder`. Throws Error(bad_config) if that contradicts
/// checkpoint.initial_load_in_hf_quantized.
std::optional<ScaleBlock> expected_quantisation(const std::filesystem::path& folder, bool is_expected);

/// The export of `checkpoint.last_save_in_hf` after step `step`, in checkpoint.export_dtype.
HuggingFaceExport make_export(const JobConfig& config, const ModelRequest& request, int64_t step,
                              const std::string& run, std::vector<std::string>& notes);

/// Reads a JSON settings file of another program; throws Error(storage) if it cannot be read or is not a JSON object.
nlohmann::json read_settings_file(const std::filesystem::path& path);

/// A dtype by its name in configs: float32, bfloat16, float16.
at::ScalarType scalar_type_named(const std::string& word);

}  // namespace titan
