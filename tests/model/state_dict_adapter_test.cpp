// Llama's names and settings at other programs, against the published files.
#include "titan/model/state_dict_adapter.h"

#include <gtest/gtest.h>

#include <set>

#include "titan/base/error.h"
#include "titan/model/model.h"

namespace titan {
namespace {

ModelRequest adapter_request(const std::string& name, const std::string& flavor) {
  ModelRequest request;
  request.model.name = name;
  request.model.flavor = flavor;
  request.tokenizer_vocabulary = 1;
  return request;
}

const StateDictAdapter& adapter() { return *find_state_dict_adapter("llama3"); }

std::map<std::string, ForeignTensor> by_name(const ForeignModel& model) {
  std::map<std::string, ForeignTensor> found;
  for (const ForeignTensor& tensor : model.tensors) found[tensor.name] = tensor;
  return found;
}

// The first lines of config.json of meta-llama/Llama-3.1-8B, as published.
const char* const kPublished = R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096,
  "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false,
  "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0,
  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true, "vocab_size": 128256})";

TEST(HuggingFaceNames, AnEightBModelHas291TensorsUnderThePublishedNames) {
  const ForeignModel model = adapter().hugging_face(adapter_request("llama3_1", "8B"));
  ASSERT_EQ(model.tensors.size(), 291u);
  const auto tensors = by_name(model);
  ASSERT_EQ(tensors.size(), 291u);
  const std::string block = "model.layers.31.";
  EXPECT_EQ(tensors.at(block + "self_attn.q_proj.weight"),
            (ForeignTensor{block + "self_attn.q_proj.weight", "layers.31.attention.wq.weight", {4096, 4096}, 32}));
  EXPECT_EQ(tensors.at(block + "self_attn.k_proj.weight"),
            (ForeignTensor{block + "self_attn.k_proj.weight", "layers.31.attention.wk.weight", {1024, 4096}, 8}));
  const std::map<std::string, std::string> others{
      {"self_attn.v_proj", "attention.wv"},    {"self_attn.o_proj", "attention.wo"},
      {"mlp.gate_proj", "feed_forward.w1"},    {"mlp.up_proj", "feed_forward.w3"},
      {"mlp.down_proj", "feed_forward.w2"},    {"input_layernorm", "attention_norm"},
      {"post_attention_layernorm", "ffn_norm"}};
  for (const auto& [theirs, ours] : others) {
    const ForeignTensor& tensor = tensors.at(block + theirs + ".weight");
    EXPECT_EQ(tensor.ours, "layers.31." + ours + ".weight");
    EXPECT_EQ(tensor.rotary_heads, 0) << theirs;
  }
  EXPECT_EQ(tensors.at("model.embed_tokens.weight").ours, "tok_embeddings.weight");
  EXPECT_EQ(tensors.at("model.norm.weight").ours, "norm.weight");
  EXPECT_EQ(tensors.at("lm_head.weight").ours, "output.weight");
  EXPECT_TRUE(model.copies.empty());
}

TEST(HuggingFaceNames, ATiedModelHasNoHeadOfItsOwnButMayBringACopy) {
  const ForeignModel model = adapter().hugging_face(adapter_request("llama3_2", "1B"));
  EXPECT_EQ(model.tensors.size(), 146u);
  EXPECT_FALSE(by_name(model).contains("lm_head.weight"));
  EXPECT_EQ(model.copies.at("lm_head.weight"), "model.embed_tokens.weight");
}

TEST(HuggingFaceNames, AModelThatTransformersCannotComputeIsRefused) {
  ModelRequest request = adapter_request("llama3", "8B");
  request.model.norm_type = NormType::layernorm;
  EXPECT_THROW(adapter().hugging_face(request), Error);
}

TEST(HuggingFaceConfig, ThePublishedOneIsOfItsFlavorAndOfNoOther) {
  const auto config = nlohmann::json::parse(kPublished);
  EXPECT_TRUE(adapter().hugging_face_differences(config, adapter_request("llama3_1", "8B")).empty());
  const auto differ = adapter().hugging_face_differences(config, adapter_request("llama3", "8B"));
  ASSERT_EQ(differ.size(), 1u);
  EXPECT_EQ(differ[0], (SettingDifference{"rotary scaling is \"llama3\", here \"none\"", true}));
  const auto smaller = adapter().hugging_face_differences(config, adapter_request("llama3_2", "1B"));
  EXPECT_EQ(smaller[0], (SettingDifference{"hidden_size is 4096, here 2048", false}));
  EXPECT_EQ(smaller.back(), (SettingDifference{"rope_scaling.factor is 8.0, here 32.0", true}));
}

TEST(HuggingFaceConfig, OnlyWhatLongerSequencesAndPrecisionAreTunedByIsChangedOnPurpose) {
  const ModelRequest request = adapter_request("llama3_1", "8B");
  const nlohmann::json ours = adapter().hugging_face_config(request);
  const std::set<std::string> tuned{"rope_theta", "rms_norm_eps"};
  std::set<std::string> on_purpose;
  for (const auto& [key, value] : ours.items()) {
    if (!value.is_number()) continue;
    nlohmann::json changed = ours;
    changed[key] = value.get<double>() * 2;
    for (const SettingDifference& difference : adapter().hugging_face_differences(changed, request)) {
      EXPECT_EQ(difference.changed_on_purpose, tuned.contains(key)) << difference.sentence;
      if (difference.changed_on_purpose) on_purpose.insert(key);
    }
  }
  EXPECT_EQ(on_purpose, tuned) << "each of them is a difference";
}

TEST(HuggingFaceConfig, OursSaysWhatThePublishedOneSays) {
  const auto published = nlohmann::json::parse(kPublished);
  const auto ours = adapter().hugging_face_config(adapter_request("llama3_1", "8B"));
  const std::set<std::string> others{"bos_token_id", "eos_token_id", "torch_dtype", "pretraining_tp"};
  for (const auto& [key, value] : published.items()) {
    if (others.contains(key)) continue;
    EXPECT_EQ(nlohmann::json(ours.at(key)), value) << key;
  }
}

TEST(HuggingFaceConfig, OursIsOfItsModelForEveryFlavorInBothPlacesOfTheRotarySettings) {
  for (const Architecture* architecture : architectures()) {
    for (const std::string& name : architecture->names()) {
      for (const std::string& flavor : architecture->flavors(name)) {
        const ModelRequest request = adapter_request(name, flavor);
        nlohmann::json config = adapter().hugging_face_config(request);
        EXPECT_TRUE(adapter().hugging_face_differences(config, request).empty()) << name << ' ' << flavor;
        nlohmann::json rotary = config["rope_scaling"].is_object() ? config["rope_scaling"] : nlohmann::json::object();
        rotary["rope_theta"] = config["rope_theta"];  // as transformers 5 writes it
        config["rope_parameters"] = rotary;
        config.erase("rope_theta");
        config.erase("rope_scaling");
        EXPECT_TRUE(adapter().hugging_face_differences(config, request).empty()) << name << ' ' << flavor;
      }
    }
  }
}

TEST(MetaNames, AreOursAndNoRowTurns) {
  const ForeignModel model = adapter().meta(adapter_request("llama3", "8B"));
  EXPECT_EQ(model.tensors.size(), 291u);
  for (const ForeignTensor& tensor : model.tensors) {
    EXPECT_EQ(tensor.name, tensor.ours);
    EXPECT_EQ(tensor.rotary_heads, 0);
  }
}

TEST(MetaParams, ThePublishedOneIsOfItsFlavorAndOfNoOther) {
  const auto params = nlohmann::json::parse(
      R"({"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256, "ffn_dim_multiplier": 1.3,
          "multiple_of": 1024, "norm_eps": 1e-05, "rope_theta": 500000.0, "use_scaled_rope": true})");
  EXPECT_TRUE(adapter().meta_differences(params, adapter_request("llama3_1", "8B")).empty());
  EXPECT_EQ(adapter().meta_differences(params, adapter_request("llama3", "8B")),
            (std::vector<SettingDifference>{{"use_scaled_rope is true, here false", true}}));
}

}  // namespace
}  // namespace titan
