// Which model the files of a conversion hold. Private to tools.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "titan/checkpoint/block_scaled_weights.h"
#include "titan/checkpoint/safetensors.h"
#include "titan/checkpoint/tensor_source.h"
#include "titan/model/model.h"
#include "titan/tools/convert.h"

namespace titan {

/// The settings file of another program that is beside its weights.
struct ForeignSettings {
  enum class Format { hugging_face, meta };
  Format format = Format::hugging_face;
  std::string shown;  // its path
  nlohmann::json json;
};

/// Reads config.json or params.json of `folder`. Throws Error(storage) when it cannot be read or is no JSON.
ForeignSettings read_settings(const std::filesystem::path& folder, ForeignSettings::Format format);

/// The model that the user names, when the settings are of that model; or else the one that an export of ours recorded,
/// or the one among all flavors that they are of. Throws Error(bad_config) with what differs.
ModelRequest model_of(const WeightConversion& conversion, const std::optional<Manifest>& manifest,
                      const ForeignSettings& settings);
/// The flavor that the settings are of; nothing when they are of none.
std::optional<ModelRequest> recognised(const ForeignSettings& settings);

/// The model that the user names, or else the recorded one, with the vocabulary of the tensors where the flavor leaves
/// it open.
ModelRequest model_of(const WeightConversion& conversion, const std::optional<Manifest>& manifest,
                      const TensorSource& weights);

/// Its parameters under our names.
std::vector<LogicalTensor> parameters_of(const ModelRequest& request);

/// Throws Error(storage) for a file, or for nothing, where a folder is asked for.
void expect_folder(const std::filesystem::path& folder);
/// Both name the folder in what they throw.
OpenCheckpoint open_checkpoint(Storage& storage, const std::filesystem::path& folder);
SafetensorsFolder open_safetensors(Storage& storage, const std::filesystem::path& folder);
/// `stored`, or `scaled` over it when the settings say that its weights are quantised.
TensorSource& as_numbers(SafetensorsFolder& stored, const ForeignSettings& settings,
                         std::optional<BlockScaledWeights>& scaled);

/// "llama3_1 8B".
std::string shown(const ModelRequest& request);

}  // namespace titan
