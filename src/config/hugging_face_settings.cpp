#include "titan/config/hugging_face_settings.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

namespace titan {
namespace {

using Json = nlohmann::json;

constexpr std::array kArchitectures{
    HuggingFaceArchitecture{"LlamaForCausalLM", "llama", 32000, 11008, 2048, 0, 0, false},
    HuggingFaceArchitecture{"MistralForCausalLM", "mistral", 32000, 14336, 131072, 8, 0, false},
    HuggingFaceArchitecture{"Qwen2ForCausalLM", "qwen2", 151936, 22016, 32768, 32, 0, true},
    HuggingFaceArchitecture{"Qwen3ForCausalLM", "qwen3", 151936, 22016, 32768, 32, 128, true}};

/// A member that is not null; null if there is none.
Json member_of(const Json& object, const char* key) { return object.is_object() ? object.value(key, Json()) : Json(); }

/// The dictionary with the rotary settings, as transformers 5 finds it: rope_scaling counts if it holds anything. A
/// dictionary per layer type is that of all layers if they agree.
Json rotary_dictionary(const Json& config) {
  const Json scaling = member_of(config, "rope_scaling");
  Json read = scaling.is_object() && !scaling.empty() ? scaling : member_of(config, "rope_parameters");
  if (!read.is_object()) return Json::object();
  std::vector<Json> by_type;
  for (const auto& [key, value] : read.items()) {
    if (value.is_object() || (value.is_null() && key.ends_with("_attention"))) by_type.push_back(value);
  }
  if (by_type.empty()) return read;
  const HuggingFaceArchitecture* architecture = architecture_of(config);
  const bool counts = by_type.size() == read.size() && (!architecture || architecture->has_layer_types);
  const bool agree = std::all_of(by_type.begin(), by_type.end(), [&](const Json& one) { return one == by_type[0]; });
  if (!counts || !agree || by_type[0].is_null()) return {{"rope_type", kRotaryByLayerType}};
  return by_type[0];
}

/// The factor that yarn multiplies attention with.
double yarn_attention(const Json& read) {
  const auto value = [&read](const char* key) {
    const Json found = read.value(key, Json());
    return found.is_number() ? found.get<double>() : 0.0;
  };
  const double factor = value("factor"), share = value("mscale"), all = value("mscale_all_dim");
  const auto grown = [&](double by) { return factor > 1 ? 0.1 * by * std::log(factor) + 1 : 1.0; };
  return share != 0 && all != 0 ? grown(share) / grown(all) : grown(1.0);
}

}  // namespace

std::span<const HuggingFaceArchitecture> hugging_face_architectures() { return kArchitectures; }

const HuggingFaceArchitecture* architecture_of(const Json& config) {
  const Json named = member_of(config, "architectures"), type = member_of(config, "model_type");
  const bool by_type = named.is_null() || named == Json::array();
  const auto found = std::find_if(kArchitectures.begin(), kArchitectures.end(), [&](const auto& one) {
    return by_type ? type == Json(one.model_type) : named == Json::array({one.name});
  });
  return found == kArchitectures.end() ? nullptr : &*found;
}

Json with_architecture_defaults(Json config) {
  const HuggingFaceArchitecture* architecture = architecture_of(config);
  if (!architecture) return config;
  const auto usual = [&config](const char* key, const Json& value) {
    if (!config.contains(key)) config[key] = value;
  };
  usual("vocab_size", architecture->vocab_size);
  usual("hidden_size", 4096);
  usual("intermediate_size", architecture->intermediate_size);
  usual("num_hidden_layers", 32);
  usual("num_attention_heads", 32);
  usual("max_position_embeddings", architecture->max_position_embeddings);
  usual("rms_norm_eps", 1e-6);
  usual("hidden_act", "silu");
  if (config["hidden_act"] == Json("swish")) config["hidden_act"] = "silu";
  usual("tie_word_embeddings", false);
  const Json width = config["hidden_size"], heads = config["num_attention_heads"];
  const bool are_counts = width.is_number() && heads.is_number() && heads.get<double>() > 0;
  const Json cut = are_counts ? Json(std::floor(width.get<double>() / heads.get<double>())) : Json();
  const std::string type = architecture->model_type;
  if (type != "mistral" && member_of(config, "num_key_value_heads").is_null() &&
      config.contains("num_key_value_heads")) {
    config["num_key_value_heads"] = heads;
  }
  usual("num_key_value_heads", architecture->kv_heads == 0 ? heads : Json(architecture->kv_heads));
  const bool may_be_null = type == "llama" || type == "mistral";
  if (may_be_null && member_of(config, "head_dim").is_null()) config["head_dim"] = cut;
  usual("head_dim", architecture->head_dim == 0 ? cut : Json(architecture->head_dim));
  return config;
}

Json rotary_settings(const Json& given) {
  const Json config = with_architecture_defaults(given);
  Json read = rotary_dictionary(config);
  const auto usual = [&read](const char* key, const Json& value) {
    if (read.value(key, Json()).is_null()) read[key] = value;
  };
  // A null is no default: transformers does not compute with it either.
  if (!read.contains("rope_theta")) read["rope_theta"] = config.value("rope_theta", Json(10000.0));
  if (!read.contains("rope_type")) read["rope_type"] = read.value("type", Json("default"));
  usual("partial_rotary_factor", member_of(config, "partial_rotary_factor"));
  usual("partial_rotary_factor", 1.0);
  const Json longest = config.value("max_position_embeddings", Json(2048));
  if (read["rope_type"] == "dynamic") read["original_max_position_embeddings"] = longest;
  if (read["rope_type"] != "yarn" && read["rope_type"] != "llama3") return read;
  const Json original = member_of(config, "original_max_position_embeddings");
  if (!original.is_null()) read["original_max_position_embeddings"] = original;
  usual("original_max_position_embeddings", longest);
  if (read["rope_type"] == "llama3") return read;
  usual("beta_fast", 32.0);
  usual("beta_slow", 1.0);
  usual("attention_factor", yarn_attention(read));
  return read;
}

Json sliding_window(const Json& config) {
  const HuggingFaceArchitecture* architecture = architecture_of(config);
  const std::string type = architecture ? architecture->model_type : "";
  if (type == "llama") return nullptr;  // transformers' class of Llama ignores the key
  const bool is_mistral = type == "mistral";
  if (!is_mistral && config.value("use_sliding_window", Json()) != Json(true)) return nullptr;
  return config.value("sliding_window", Json(4096));
}

std::string unreadable_quantisation(const nlohmann::json& config) {
  const auto found = config.find("quantization_config");
  if (found == config.end() || !found->is_object()) return {};
  const auto text = [&](const char* key, const char* otherwise) {
    const auto value = found->find(key);
    return value != found->end() && value->is_string() ? value->get<std::string>() : std::string(otherwise);
  };
  const auto sizes = found->find("weight_block_size");
  const auto is_size = [](const nlohmann::json& size) {
    return size.is_number_unsigned() && size.get<uint64_t>() > 0 && size.get<uint64_t>() <= (uint64_t{1} << 31);
  };
  const bool in_blocks = sizes != found->end() && sizes->is_array() && sizes->size() == 2 &&
                         std::all_of(sizes->begin(), sizes->end(), is_size);
  const std::string method = text("quant_method", "an unnamed method");
  return method == "fp8" && text("fmt", "e4m3") == "e4m3" && in_blocks ? std::string() : method;
}

}  // namespace titan
