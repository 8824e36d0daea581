// Interprets parts of a Hugging Face config.json written by any release of transformers. Pure functions; used by
// model.from_hf, which turns them into options, and by the models' adapters, which compare them with a model.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

namespace titan {

/// An architecture that is read, with the defaults of its class in transformers 5.24 that differ between classes.
struct HuggingFaceArchitecture {
  const char* name;        ///< in "architectures"
  const char* model_type;  ///< also its name in model.name
  int64_t vocab_size, intermediate_size, max_position_embeddings;
  int64_t kv_heads;      ///< 0: as many as heads
  int64_t head_dim;      ///< 0: hidden_size / num_attention_heads
  bool has_layer_types;  ///< whether its rotary settings may be by layer type
};
std::span<const HuggingFaceArchitecture> hugging_face_architectures();

/// The one that "architectures" names; by "model_type" if that names none. Null: not read here.
const HuggingFaceArchitecture* architecture_of(const nlohmann::json& config);

/// The config with what it leaves out, as transformers completes it; unchanged if its architecture is not read here.
/// Only missing keys count as left out; null does where the class allows it. An activation "swish", its other name of
/// silu, becomes "silu".
nlohmann::json with_architecture_defaults(nlohmann::json config);

/// The rotary settings as transformers reads them: rope_theta, rope_type, partial_rotary_factor and the type's own
/// settings; missing ones have their default, or are absent if there is none. Read from rope_theta and rope_scaling or,
/// since transformers 5, from rope_parameters. Values are not checked. The rope_type is kRotaryByLayerType if the file
/// has a dictionary for each layer type and they differ, or are not alone, or are of no meaning for its architecture.
inline constexpr const char* kRotaryByLayerType = "by layer type";
nlohmann::json rotary_settings(const nlohmann::json& config);

/// The sliding window: how many preceding tokens a token sees, in any layer; null: all.
nlohmann::json sliding_window(const nlohmann::json& config);

/// The method by which the config says that its weights are quantised, if it is not read; empty: they are not
/// quantised, or by fp8 (e4m3) with a weight_block_size.
std::string unreadable_quantisation(const nlohmann::json& config);

}  // namespace titan
