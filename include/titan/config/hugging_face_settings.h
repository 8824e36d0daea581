// What parts of a Hugging Face config.json mean, whichever release of transformers wrote it. Pure functions; shared by
// model.from_hf, which makes options of it, and by the models' adapters, which compare it with a model.
#pragma once

#include <nlohmann/json.hpp>

namespace titan {

/// The rotary settings as transformers reads them: rope_theta, rope_type, partial_rotary_factor and what the type
/// needs, each with its default where it has one, else absent. They are in rope_theta and rope_scaling or, since
/// transformers 5, in rope_parameters. Values are as in the file: nothing is checked.
nlohmann::json rotary_settings(const nlohmann::json& config);

/// Tokens that a token of any layer sees before it; null: all of them.
nlohmann::json sliding_window(const nlohmann::json& config);

}  // namespace titan
