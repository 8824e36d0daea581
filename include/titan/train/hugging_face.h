// A run's model in Hugging Face's form: what an export of it consists of besides the weights. Shared by the run that
// saves its last step so and by `titan_train convert`.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "titan/checkpoint/hugging_face_export.h"
#include "titan/checkpoint/tensor_source.h"
#include "titan/config/job_config.h"
#include "titan/model/model.h"
#include "titan/train/run_state.h"

namespace titan {

/// Throws Error(bad_config) for a family that no other program knows.
const StateDictAdapter& adapter_of(const ModelRequest& request);

/// The tokenizer at `place`, a file or a folder; null where there is none that can be opened.
std::shared_ptr<const Tokenizer> tokenizer_at(const std::filesystem::path& place);

/// The files beside exported weights: config.json, generation_config.json, the tokenizer's files from the place that
/// the config names, and the chat template that it names. A missing tokenizer adds a line to `notes`.
std::vector<CompanionFile> make_companions(const JobConfig& config, const ModelRequest& request, at::ScalarType type,
                                           std::vector<std::string>& notes);

/// For a run that is to begin from `folder`: throws Error(storage) when that is another kind of folder, a file, or
/// nothing, StorageError when it cannot be looked into.
void expect_their_model(const std::filesystem::path& folder);

/// Holds the config.json of such a folder, where there is one, against the model that takes its weights, as
/// check_model_facts does: throws Error(bad_config) with what differs, or returns a sentence for a warning.
std::string check_settings(const std::filesystem::path& folder, const ModelRequest& request, WeightUse use);

/// The blocks in which a config.json, `shown` for people, says that the weights beside it are quantised; nothing when
/// they are not. Throws Error(storage) for a way of quantising that is not read.
std::optional<ScaleBlock> quantisation_of(const nlohmann::json& settings, const std::string& shown);

/// The same for a run that begins from `folder`. Throws Error(bad_config) when that is not what
/// checkpoint.initial_load_in_hf_quantized says.
std::optional<ScaleBlock> expected_quantisation(const std::filesystem::path& folder, bool is_expected);

/// What `checkpoint.last_save_in_hf` asks for after step `step`, in checkpoint.export_dtype.
HuggingFaceExport make_export(const JobConfig& config, const ModelRequest& request, int64_t step,
                              const std::string& run, std::vector<std::string>& notes);

/// A settings file of another program; throws Error(storage) when it cannot be read or is no JSON object.
nlohmann::json read_settings_file(const std::filesystem::path& path);

/// A dtype by its name in configs: float32, bfloat16, float16.
at::ScalarType scalar_type_named(const std::string& word);

}  // namespace titan
