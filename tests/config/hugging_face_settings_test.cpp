// config.json of a Hugging Face folder: what it leaves out, and rotary settings that are refused. What transformers
// itself makes of such files is compared in tests/reference/from_hf_test.py.
#include "titan/config/hugging_face_settings.h"

#include "config/support.h"

namespace titan {
namespace {

using Json = nlohmann::json;

class HuggingFaceSettings : public ScratchTest {
 protected:
  LoadedConfig loaded(const Json& config) {
    write("model/config.json", config.dump());
    return load("[training]\nseq_len = 32\n", {"--model.from_hf=" + (folder_ / "model").string()});
  }
  std::string refusal(const Json& config) { return said(loaded(config)); }
};

TEST_F(HuggingFaceSettings, WhatAFileLeavesOutIsTheDefaultOfItsArchitecture) {
  struct Expected {
    const char* type;
    int64_t vocabulary, hidden, kv_heads, context;
  };
  for (const Expected& expected :
       {Expected{"llama", 32000, 11008, 32, 2048}, Expected{"mistral", 32000, 14336, 8, 4096},
        Expected{"qwen2", 151936, 22016, 32, 32768}, Expected{"qwen3", 151936, 22016, 32, 32768}}) {
    SCOPED_TRACE(expected.type);
    const LoadedConfig config = loaded({{"model_type", expected.type}});
    ASSERT_EQ(said(config), "");
    const ModelSection& model = config.config.model;
    EXPECT_EQ(model.name, expected.type);
    EXPECT_EQ(model.override_sizes.vocab_size, expected.vocabulary);
    EXPECT_EQ(model.override_sizes.hidden_dim, expected.hidden);
    EXPECT_EQ(model.override_sizes.n_kv_heads, expected.kv_heads);
    EXPECT_EQ(model.max_seq_len, expected.context) << "at most the sliding window";
    EXPECT_EQ(model.override_sizes.dim, 4096);
    EXPECT_EQ(model.override_sizes.n_layers, 32);
    EXPECT_EQ(model.override_sizes.head_dim, 128);
    EXPECT_EQ(model.override_sizes.norm_eps, 1e-6);
    EXPECT_EQ(model.override_sizes.rope_theta, 10000);
    EXPECT_EQ(model.override_sizes.embeddings, "untied");
  }
}

TEST_F(HuggingFaceSettings, SizesOfHeadsFollowTheOthers) {
  const Json sizes{{"hidden_size", 66}, {"num_attention_heads", 4}};
  const auto with = [&](const char* type, Json more = Json::object()) {
    more.update(sizes);
    more["model_type"] = type;
    return loaded(more).config.model.override_sizes;
  };
  EXPECT_EQ(with("llama").head_dim, 16);
  EXPECT_EQ(with("llama").n_kv_heads, 4);
  EXPECT_EQ(with("llama", {{"head_dim", nullptr}, {"num_key_value_heads", nullptr}}).head_dim, 16);
  EXPECT_EQ(with("qwen2").head_dim, 16);
  EXPECT_EQ(with("qwen2", {{"num_key_value_heads", nullptr}}).n_kv_heads, 4);
  EXPECT_EQ(with("qwen3").head_dim, 128);
  EXPECT_TRUE(contains(refusal({{"model_type", "qwen3"}, {"head_dim", nullptr}}), "it has no head_dim"));
  EXPECT_TRUE(
      contains(refusal({{"model_type", "mistral"}, {"num_key_value_heads", nullptr}}), "no num_key_value_heads"));
}

TEST_F(HuggingFaceSettings, WeightsOfAQuantisationThatIsNotReadAreRefusedByItsName) {
  write("model/model.safetensors", "");
  const auto refused = [&](const Json& quantisation) {
    return refusal({{"model_type", "llama"}, {"quantization_config", quantisation}});
  };
  const std::string method = refused({{"quant_method", "gptq"}, {"bits", 4}});
  EXPECT_TRUE(contains(method, "are quantised by gptq; only fp8 (e4m3) with a weight_block_size can be read"))
      << method;
  EXPECT_TRUE(contains(method, "take the weights that were not quantised")) << method;
  EXPECT_TRUE(contains(refused({{"bits", 4}}), "are quantised by an unnamed method"));
  EXPECT_TRUE(contains(refused({{"quant_method", "fp8"}}), "are quantised by fp8"));
  EXPECT_TRUE(contains(refused({{"quant_method", "fp8"}, {"weight_block_size", {0, 32}}}), "are quantised by fp8"));
  EXPECT_EQ(refused({{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}), "");
  EXPECT_EQ(refused(nullptr), "");
}

TEST_F(HuggingFaceSettings, WhatTransformersReadsOtherwiseIsRefused) {
  const Json one{{"rope_type", "linear"}, {"factor", 2}};
  const auto refused = [&](const char* type, const Json& more) {
    Json config{{"model_type", type}};
    config.update(more);
    return refusal(config);
  };
  const Json by_type{{"full_attention", one}};
  EXPECT_EQ(refused("qwen3", {{"rope_parameters", by_type}}), "");
  EXPECT_TRUE(contains(refused("llama", {{"rope_parameters", by_type}}), "rotary settings by layer type"));
  EXPECT_TRUE(contains(refused("qwen3", {{"rope_parameters", {{"full_attention", one}, {"rope_type", "default"}}}}),
                       "rotary settings by layer type"));
  EXPECT_TRUE(contains(refused("llama", {{"rope_theta", nullptr}}), "it has no rope_theta"));
  EXPECT_TRUE(contains(refused("llama", {{"rope_scaling", "linear"}}), "rope_scaling is \"linear\""));
  EXPECT_TRUE(
      contains(refused("llama", {{"per_layer_config", {{"1", {{"num_key_value_heads", 1}}}}}}), "per_layer_config"));
  EXPECT_TRUE(contains(refused("qwen2", {{"layer_types", {"sliding_attention"}}}), "layer_types names"));
  EXPECT_TRUE(contains(refused("llama", {{"num_hidden_layers", 1}, {"layer_types", {"sliding_attention"}}}),
                       "layer_types names \"sliding_attention\""));
  EXPECT_TRUE(contains(refused("qwen3", {{"num_hidden_layers", 2}, {"layer_types", {"full_attention"}}}),
                       "layer_types names 1 layers, and num_hidden_layers is 2"));
  EXPECT_TRUE(contains(refused("qwen3", {{"is_causal", false}}), "is_causal is false"));
  EXPECT_EQ(refused("llama", {{"hidden_act", "swish"}, {"quantization_config", nullptr}}), "");
  EXPECT_EQ(with_architecture_defaults({{"model_type", "llama"}, {"hidden_act", "swish"}})["hidden_act"], "silu")
      << "so that loading the weights takes it, too";
  EXPECT_TRUE(contains(refused("llama", {{"tie_word_embeddings", 1}}), "tie_word_embeddings is 1"));
  EXPECT_TRUE(contains(refused("llama", {{"architectures", {"Qwen2ForCausalLM"}}}),
                       "its model_type is \"llama\" and its architectures name Qwen2ForCausalLM"));
  EXPECT_EQ(refused("llama", {{"use_sliding_window", true}, {"sliding_window", 8}}), "") << "Llama's class has none";
}

TEST_F(HuggingFaceSettings, AWindowThatOnlyGenerateOfTransformersAppliesIsNamedInANote) {
  const auto notes = [&](const Json& window) {
    return notes_of(loaded({{"model_type", "llama"}, {"sliding_window", window}}));
  };
  EXPECT_TRUE(contains(notes(2048), "sliding_window is 2048: the forward pass of transformers' Llama ignores it"));
  EXPECT_EQ(notes(nullptr), notes_of(loaded({{"model_type", "llama"}})));
}

TEST_F(HuggingFaceSettings, DropoutThatTransformersWouldApplyIsNamedInANote) {
  const auto noted = [&](const Json& more) {
    Json config{{"model_type", "llama"}};
    config.update(more);
    const LoadedConfig found = loaded(config);
    EXPECT_EQ(said(found), "");
    return contains(notes_of(found), "attention_dropout is 0.1, which transformers applies in training");
  };
  EXPECT_TRUE(noted({{"attention_dropout", 0.1}}));
  EXPECT_FALSE(noted({{"attention_dropout", 0.0}}));
  EXPECT_FALSE(noted({{"attention_dropout", nullptr}}));
  EXPECT_FALSE(noted(Json::object()));
}

}  // namespace
}  // namespace titan
