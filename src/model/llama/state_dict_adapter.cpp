// Llama's names and settings in Hugging Face's and Meta's formats.
#include "titan/model/llama/state_dict_adapter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "titan/base/error.h"
#include "titan/config/hugging_face_settings.h"
#include "titan/model/llama/llama.h"

namespace titan {
namespace {

using Json = nlohmann::json;

struct Renaming {
  const char* ours;
  const char* theirs;
};
constexpr std::array<Renaming, 11> kBlockNames{{{"attention.wq", "self_attn.q_proj"},
                                                {"attention.wk", "self_attn.k_proj"},
                                                {"attention.wv", "self_attn.v_proj"},
                                                {"attention.wo", "self_attn.o_proj"},
                                                {"feed_forward.w1", "mlp.gate_proj"},
                                                {"feed_forward.w2", "mlp.down_proj"},
                                                {"feed_forward.w3", "mlp.up_proj"},
                                                {"attention.q_norm", "self_attn.q_norm"},
                                                {"attention.k_norm", "self_attn.k_norm"},
                                                {"attention_norm", "input_layernorm"},
                                                {"ffn_norm", "post_attention_layernorm"}}};
constexpr std::array<Renaming, 3> kOuterNames{{{"tok_embeddings.weight", "model.embed_tokens.weight"},
                                               {"norm.weight", "model.norm.weight"},
                                               {"output.weight", "lm_head.weight"}}};

/// Context length in the files of models without rotary scaling; it limits nothing here.
constexpr int64_t kUnscaledContext = 8192;
constexpr int64_t kScaledContext = 131072;  // as in Llama 3.1's files

std::vector<ParameterSpec> all_parameters(const ModelRequest& request) {
  std::vector<ParameterSpec> all;
  for (UnitDescription& unit : describe_model(request).units) {
    for (ParameterSpec& spec : unit.parameters) all.push_back(std::move(spec));
  }
  return all;
}

std::string hugging_face_name(const std::string& ours) {
  for (const Renaming& name : kOuterNames) {
    if (ours == name.ours) return name.theirs;
  }
  const size_t number = ours.find('.') + 1;
  const size_t what = ours.find('.', number) + 1;
  const size_t leaf = ours.rfind('.');
  const std::string middle = ours.substr(what, leaf - what);
  for (const Renaming& name : kBlockNames) {
    if (middle != name.ours) continue;
    return fmt::format("model.layers.{}.{}{}", ours.substr(number, what - number - 1), name.theirs, ours.substr(leaf));
  }
  throw InvariantError(fmt::format("internal error: {} has no name at Hugging Face's", ours));
}

int64_t rotary_heads(const std::string& name, const LlamaArguments& arguments) {
  const auto is_of = [&](const char* layer) { return name.find(layer) != name.npos; };
  if (is_of(".wq.")) return arguments.heads;
  if (is_of(".wk.")) return arguments.kv_heads;
  return is_of(".q_norm.") || is_of(".k_norm.") ? 1 : 0;
}

/// A scaling in transformers' terms, without the fields that it does not read.
Json rotary_json(const RotaryScaling& scaling) {
  constexpr std::array<const char*, 4> kTypes{"llama3", "linear", "dynamic", "yarn"};
  Json json{{"rope_type", kTypes.at(static_cast<size_t>(scaling.kind))}};
  visit_rotary_numbers(scaling.kind, [&](const char*, const char* key, auto number) { json[key] = scaling.*number; });
  return json;
}

/// Collects the differences, in the file's terms.
class Comparison {
 public:
  explicit Comparison(const Json& theirs) : theirs_(theirs) {}

  /// `absent`: the value of a missing key; null: the key is required.
  void expect(const char* key, const Json& here, const Json& absent = nullptr) {
    const auto found = theirs_.find(key);
    const bool missing = found == theirs_.end() || found->is_null();
    compare(key, missing ? absent : *found, here);
  }

  void compare(const std::string& key, const Json& there, const Json& here) {
    if (there.is_number() && here.is_number()) {
      const auto a = there.get<double>(), b = here.get<double>();
      if (std::abs(a - b) <= 1e-6 * std::abs(b)) return;
    } else if (there == here) {
      return;
    }
    // Tuned numbers may differ, but a change of type is never deliberate.
    const bool same_kind = there.is_null() || there.is_number() == here.is_number();
    const bool tuned = key.find("rope") != key.npos || key.find("rotary") != key.npos || key.ends_with("norm_eps");
    differences_.push_back(
        {fmt::format("{} is {}, here {}", key, there.is_null() ? "missing" : there.dump(), here.dump()),
         tuned && same_kind});
  }

  /// A setting that no model here supports, even if deliberate.
  void refuse(const std::string& key, const Json& there, const char* here) {
    differences_.push_back({fmt::format("{} is {}, {}", key, there.dump(), here)});
  }

  const Json& theirs() const { return theirs_; }
  std::vector<SettingDifference> take() { return std::move(differences_); }

 private:
  const Json& theirs_;
  std::vector<SettingDifference> differences_;
};

void compare_rotary(Comparison& comparison, const LlamaArguments& arguments) {
  const Json& theirs = comparison.theirs();
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json settings = theirs.value(key, Json());
    if (!settings.is_null() && !settings.is_object()) comparison.refuse(key, settings, "which is not a JSON object");
  }
  const Json there = rotary_settings(theirs);
  comparison.compare("rope_theta", there["rope_theta"], arguments.rope_theta);
  if (const Json& share = there["partial_rotary_factor"]; share != Json(1.0)) {
    comparison.refuse("partial_rotary_factor", share, "and here the whole of every head turns");
  }
  if (!arguments.rope_scaling) {
    if (there["rope_type"] != "default") comparison.compare("rotary scaling", there["rope_type"], "none");
    return;
  }
  const Json here = rotary_json(*arguments.rope_scaling);
  for (const auto& [key, value] : here.items()) {
    comparison.compare("rope_scaling." + key, there.value(key, Json()), value);
  }
}

std::string words_of(const std::optional<RotaryScaling>& scaling) {
  if (!scaling) return "none";
  if (scaling->kind != RotaryScaling::Kind::llama3) return rotary_json(*scaling).dump();
  return fmt::format("factor {}, frequency factors {} and {}, original context {}", scaling->factor,
                     scaling->low_freq_factor, scaling->high_freq_factor, scaling->original_context);
}

/// What must be equal for weights to be interchangeable: all RMS norms compute the same function.
std::string words_of(NormType norm) { return std::string(word_of(is_rms_norm(norm) ? NormType::rmsnorm : norm)); }

}  // namespace

LlamaAdapter::Kind LlamaAdapter::kind(const ModelRequest& request) const {
  return request.model.name == "mistral" ? Kind{"mistral", "MistralForCausalLM"} : Kind{"llama", "LlamaForCausalLM"};
}

std::vector<ModelFact> LlamaAdapter::facts(const ModelRequest& request) const {
  ModelRequest own = request;
  own.block_causal = false;  // the data decide it: the same weights serve both, and must compare as equal
  const LlamaArguments a = llama_arguments(own);
  const auto number = [](auto value) { return fmt::format("{}", value); };
  return {{"n_heads", number(a.heads), "model.override.n_heads"},
          {"n_kv_heads", number(a.kv_heads), "model.override.n_kv_heads"},
          {"norm_type", words_of(a.norm), "model.norm_type"},
          {"norm_eps", number(a.norm_epsilon), "model.flavor", /*changed_on_purpose=*/true},
          {"rope_theta", number(a.rope_theta), "model.flavor", /*changed_on_purpose=*/true},
          {"rope_scaling", words_of(a.rope_scaling), "model.rope_scaling", /*changed_on_purpose=*/true},
          {"attention", a.block_causal ? "block-causal" : "causal", "model.flavor", /*changed_on_purpose=*/true}};
}

ForeignModel LlamaAdapter::hugging_face(const ModelRequest& request) const {
  const LlamaArguments arguments = llama_arguments(request);
  if (!is_rms_norm(arguments.norm)) {
    throw Error(ExitCode::bad_config, fmt::format("model.norm_type = \"{}\": Hugging Face's Llama has only rmsnorm",
                                                  word_of(arguments.norm)));
  }
  ForeignModel model;
  for (const ParameterSpec& spec : all_parameters(request)) {
    model.tensors.push_back({hugging_face_name(spec.name), spec.name, spec.shape, rotary_heads(spec.name, arguments)});
  }
  if (arguments.tied) model.copies["lm_head.weight"] = "model.embed_tokens.weight";
  model.ignored = {".rotary_emb.inv_freq"};
  return model;
}

nlohmann::ordered_json LlamaAdapter::hugging_face_config(const ModelRequest& request) const {
  const LlamaArguments arguments = llama_arguments(request);
  const bool old = request.model.name == "llama2";
  int64_t usual = arguments.rope_scaling ? kScaledContext : old ? kUnscaledContext / 2 : kUnscaledContext;
  if (request.model.flavor == kCustomFlavor && request.model.max_seq_len > 0) usual = request.model.max_seq_len;
  nlohmann::ordered_json config{{"architectures", {kind(request).architecture}},
                                {"model_type", kind(request).model_type},
                                {"vocab_size", arguments.vocabulary},
                                {"hidden_size", arguments.dim},
                                {"intermediate_size", arguments.hidden},
                                {"num_hidden_layers", arguments.layers},
                                {"num_attention_heads", arguments.heads},
                                {"num_key_value_heads", arguments.kv_heads},
                                {"head_dim", arguments.head_dim},
                                {"max_position_embeddings", std::max(usual, arguments.max_sequence)},
                                {"rms_norm_eps", arguments.norm_epsilon},
                                {"rope_theta", arguments.rope_theta},
                                {"rope_scaling", nullptr},
                                {"tie_word_embeddings", arguments.tied},
                                {"hidden_act", "silu"},
                                {"attention_bias", false},
                                {"mlp_bias", false},
                                {"attention_dropout", 0.0},
                                {"initializer_range", 0.02},
                                {"use_cache", true}};
  if (arguments.rope_scaling) {
    config["rope_scaling"] = rotary_json(*arguments.rope_scaling);
    const bool dynamic = arguments.rope_scaling->kind == RotaryScaling::Kind::dynamic;
    // transformers scales from this length on.
    if (dynamic) config["max_position_embeddings"] = arguments.rope_scaling->original_context;
  }
  // Left out, the key would get the default of transformers' classes, a sliding window that training did not have.
  if (request.model.name == "mistral") config["sliding_window"] = nullptr;
  if (request.model.name.starts_with("qwen")) config["use_sliding_window"] = false;
  return config;
}

std::vector<SettingDifference> LlamaAdapter::hugging_face_differences(const Json& given,
                                                                      const ModelRequest& request) const {
  const LlamaArguments arguments = llama_arguments(request);
  if (!given.is_object()) return {SettingDifference{"it is not a JSON object"}};
  const Json config = with_architecture_defaults(given);
  Comparison comparison(config);
  comparison.expect("model_type", kind(request).model_type);
  comparison.expect("hidden_size", arguments.dim);
  comparison.expect("num_hidden_layers", arguments.layers);
  comparison.expect("num_attention_heads", arguments.heads);
  comparison.expect("num_key_value_heads", arguments.kv_heads, config.value("num_attention_heads", Json()));
  comparison.expect("head_dim", arguments.head_dim, arguments.head_dim);
  comparison.expect("intermediate_size", arguments.hidden);
  comparison.expect("vocab_size", arguments.vocabulary);
  comparison.expect("tie_word_embeddings", arguments.tied, false);
  comparison.expect("rms_norm_eps", arguments.norm_epsilon, 1e-6);
  comparison.expect("hidden_act", "silu", "silu");
  comparison.expect("attention_bias", false, false);
  comparison.expect("mlp_bias", false, false);
  const Json window = sliding_window(config);
  if (window.is_number() && window.get<double>() < static_cast<double>(request.sequence_length)) {
    comparison.refuse("sliding_window", window, "and here every token sees all before it");
  }
  compare_rotary(comparison, arguments);
  return comparison.take();
}

std::map<std::string, at::Tensor> LlamaAdapter::tables_of_2024(const ModelRequest& request) const {
  const LlamaArguments a = llama_arguments(request);
  return {{"freqs_cis", rotary_table(request.sequence_length, a.head_dim, a.rope_theta, a.rope_scaling)}};
}

ForeignModel LlamaAdapter::meta(const ModelRequest& request) const {
  const LlamaArguments arguments = llama_arguments(request);
  ForeignModel model;
  for (const ParameterSpec& spec : all_parameters(request)) model.tensors.push_back({spec.name, spec.name, spec.shape});
  if (arguments.tied) model.copies["output.weight"] = "tok_embeddings.weight";
  model.ignored = {"rope.freqs"};
  return model;
}

std::vector<SettingDifference> LlamaAdapter::meta_differences(const Json& params, const ModelRequest& request) const {
  const LlamaArguments arguments = llama_arguments(request);
  if (!params.is_object()) return {SettingDifference{"it is not a JSON object"}};
  Comparison comparison(params);
  comparison.expect("dim", arguments.dim);
  comparison.expect("n_layers", arguments.layers);
  comparison.expect("n_heads", arguments.heads);
  comparison.expect("n_kv_heads", arguments.kv_heads, params.value("n_heads", Json()));
  comparison.expect("norm_eps", arguments.norm_epsilon, arguments.norm_epsilon);
  comparison.expect("rope_theta", arguments.rope_theta, arguments.rope_theta);
  const Json vocabulary = params.value("vocab_size", Json(-1));
  // Meta's files write −1 where the tokenizer decides.
  if (vocabulary != -1) comparison.expect("vocab_size", arguments.vocabulary);
  comparison.expect("use_scaled_rope", arguments.rope_scaling.has_value(), false);
  return comparison.take();
}
const StateDictAdapter& llama_adapter() {
  static const LlamaAdapter adapter;
  return adapter;
}

}  // namespace titan
