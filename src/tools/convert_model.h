// Determines the model of the files of a conversion. Private to tools.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "titan/checkpoint/safetensors.h"
#include "titan/checkpoint/tensor_source.h"
#include "titan/model/model.h"
#include "titan/tools/convert.h"

namespace titan {

/// The model settings file in a folder of another program's weights.
struct ForeignSettings {
  enum class Format { hugging_face, meta };
  Format format = Format::hugging_face;
  std::string shown;  // its path
  nlohmann::json json;
};

/// Reads config.json or params.json of `folder`. Throws Error(storage) when it cannot be read or is not JSON.
ForeignSettings read_settings(const std::filesystem::path& folder, ForeignSettings::Format format);

/// The model named by the user, if the settings match it; otherwise the one recorded by our export, the flavor that
/// matches the settings, or that of model.from_hf. Throws Error(bad_config) with the differences.
ModelRequest model_of(const WeightConversion& conversion, const std::optional<Manifest>& manifest,
                      const ForeignSettings& settings);
/// The flavor that matches the settings; nothing if none does.
std::optional<ModelRequest> recognised(const ForeignSettings& settings);

/// The model named by the user, otherwise the recorded one; the vocabulary size is taken from the tensors if the flavor
/// has none.
ModelRequest model_of(const WeightConversion& conversion, const std::optional<Manifest>& manifest,
                      const TensorSource& weights);

/// The model's parameters under our names.
std::vector<LogicalTensor> parameters_of(const ModelRequest& request);

/// Both functions name the folder in their errors.
OpenCheckpoint open_checkpoint(Storage& storage, const std::filesystem::path& folder);
SafetensorsFolder open_safetensors(Storage& storage, const std::filesystem::path& folder);
/// `stored`, or `scaled` wrapping it if the settings declare quantised weights.
TensorSource& as_numbers(SafetensorsFolder& stored, const ForeignSettings& settings,
                         std::optional<BlockScaledWeights>& scaled);

/// "llama3_1 8B".
std::string shown(const ModelRequest& request);

}  // namespace titan
