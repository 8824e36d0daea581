// Interprets parts of a Hugging Face config.json written by any release of transformers. Pure functions; used by
// model.from_hf, which turns them into options, and by the models' adapters, which compare them with a model.
#pragma once

#include <nlohmann/json.hpp>

namespace titan {

/// The rotary settings as transformers reads them: rope_theta, rope_type, partial_rotary_factor and the type's own
/// settings; missing ones have their default, or are absent if there is none. Read from rope_theta and rope_scaling or,
/// since transformers 5, from rope_parameters. Values are not checked. The rope_type is kRotaryByLayerType if the file
/// has a dictionary for each layer type and they differ.
inline constexpr const char* kRotaryByLayerType = "by layer type";
nlohmann::json rotary_settings(const nlohmann::json& config);

/// The sliding window: how many preceding tokens a token sees, in any layer; null: all.
nlohmann::json sliding_window(const nlohmann::json& config);

}  // namespace titan
