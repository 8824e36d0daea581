// Section model and its overrides.

#include "titan/config/section.h"

namespace titan::detail {

namespace {

void describe_model_override(Schema& schema) {
  using S = ModelOverrideSection;
  Section sizes(
      schema, "model.override",
      "Overrides of the flavor's sizes; 0 keeps the flavor's. The flavor custom has no sizes of its own.",
      [](auto& config) -> auto& { return config.model.override_sizes; });
  sizes.add("dim", &S::dim, 0).own().at_least(0).at_most(kWidestModel).help("width of the residual stream");
  sizes.add("n_layers", &S::n_layers, 0).own().at_least(0).at_most(kMostLayers).help("transformer blocks");
  sizes.add("n_heads", &S::n_heads, 0).own().at_least(0).help("attention heads");
  sizes.add("n_kv_heads", &S::n_kv_heads, 0)
      .own()
      .at_least(0)
      .help("key-value heads; with n_heads given, 0 means as many");
  sizes.add("head_dim", &S::head_dim, 0)
      .own()
      .at_least(0)
      .at_most(kWidestModel)
      .help("width of a head; 0: dim / n_heads");
  sizes.add("hidden_dim", &S::hidden_dim, 0)
      .own()
      .at_least(0)
      .at_most(kWidestModel)
      .help("width of the feed-forward layers; 0: what follows from dim and multiple_of");
  sizes.add("multiple_of", &S::multiple_of, 0)
      .own()
      .at_least(0)
      .at_most(kWidestModel)
      .help("the feed-forward width is rounded up to a multiple of this");
  sizes.add("vocab_size", &S::vocab_size, 0)
      .own()
      .at_least(0)
      .at_most(kLargestVocabulary)
      .help("rows of the embedding and the head");
  sizes.add("norm_eps", &S::norm_eps, 0.0).own().at_least(0).below(1).help("epsilon of the norms; 0: 1e-5");
  sizes.add("embeddings", &S::embeddings, "default")
      .own()
      .choices({"default", "tied", "untied"})
      .help("tie the head to the embedding");
  sizes.add("rope_theta", &S::rope_theta, 0.0).own().at_least(0).help("base of the rotary frequencies");
  Section rope(
      schema, "model.override", [](auto& config) -> auto& { return config.model.override_sizes.rope; });
  rope.add("rope_factor", &RotaryScaling::factor, 0.0).own().at_least(0).help("factor of model.rope_scaling");
  rope.add("rope_low_freq_factor", &RotaryScaling::low_freq_factor, 0.0)
      .own()
      .at_least(0)
      .help("llama3_1, llama3_2: turns within the original context below which a frequency is divided; 0: 1");
  rope.add("rope_high_freq_factor", &RotaryScaling::high_freq_factor, 0.0)
      .own()
      .at_least(0)
      .help("llama3_1, llama3_2: turns within the original context above which a frequency stays; 0: 4");
  rope.add("rope_original_context", &RotaryScaling::original_context, 0)
      .own()
      .at_least(0)
      .at_most(kLongestSequence)
      .help("tokens of the context before the scaling; 0: 8192");
  rope.add("rope_beta_fast", &RotaryScaling::beta_fast, 0.0)
      .own()
      .at_least(0)
      .help("yarn: turns within the original context above which a frequency stays; 0: 32");
  rope.add("rope_beta_slow", &RotaryScaling::beta_slow, 0.0)
      .own()
      .at_least(0)
      .help("yarn: turns within the original context below which a frequency is divided; 0: 1");
  rope.add("rope_attention_factor", &RotaryScaling::attention_factor, 0.0)
      .own()
      .at_least(0)
      .help("yarn: rotated queries and keys grow by this; 0: 0.1 · ln(factor) + 1");
}

}  // namespace

void describe_model(Schema& schema) {
  using S = ModelSection;
  const std::string mx = "MX formats need a Blackwell GPU";
  const std::string experts = "there are no expert layers here";
  Section model(
      schema, "model", "Which model, and the files that belong to it.",
      [](auto& config) -> auto& { return config.model; });
  model.add("from_hf", &S::from_hf, "")
      .own()
      .help(
          "folder of a Hugging Face model: its config.json gives the defaults of the model options, its tokenizer "
          "that of tokenizer_path, and training begins from its weights, if it holds any");
  model.add("name", &S::name, "llama3")
      .choices({"llama2", "llama3", "llama3_1", "llama3_2", "llama", "mistral", "qwen2", "qwen3"})
      .help("model family; it also decides the scaling of rotary positions");
  model.add("flavor", &S::flavor, "debugmodel")
      .not_empty()
      .help("size of the model, for example debugmodel, 8B, 70B, 405B; custom: all sizes from model.override");
  model.add("norm_type", &S::norm_type, NormType::rmsnorm)
      .early()
      .any_case()
      .help("normalisation; fused_rmsnorm rounds once, after the weight, where rmsnorm also rounds before it");
  model.add("rope_scaling", &S::rope_scaling, "default")
      .own()
      .choices({"default", "none", "llama3_1", "llama3_2", "linear", "dynamic", "yarn"})
      .help("scaling of rotary positions; default: what model.name stands for");
  model.add("max_seq_len", &S::max_seq_len, 0)
      .own()
      .at_least(0)
      .at_most(kLongestSequence)
      .help("longest training.seq_len to accept, beyond what the model was published with; 0: as published");
  model.add("hf_assets_path", &S::hf_assets_path, "./tests/assets/tokenizer")
      .later()
      .not_empty()
      .help("folder with the tokenizer and, optionally, safetensors weights");
  model.add("tokenizer_path", &S::tokenizer_path, std::nullopt)
      .in_2024(Value("./torchtitan/datasets/tokenizer/tokenizer.model"))
      .not_empty()
      .help("tokenizer, a file or a folder; none: the one in model.hf_assets_path");
  model.add("converters", &S::converters, {})
      .later()
      .choices({"quantize.linear.float8"})
      .formerly("float8", "quantize.linear.float8")
      .refuses("quantize.linear.mx", mx)
      .refuses("mx", mx)
      .refuses("quantize.grouped_mm.float8", experts)
      .refuses("quantize.grouped_mm.mx", experts)
      .help("changes made to the model before it is parallelised");
  model.add("print_after_conversion", &S::print_after_conversion, false)
      .later()
      .only_when(
          {"model.converters names one", [](const JobConfig& config) { return !config.model.converters.empty(); }})
      .help("print every linear layer after the converters ran");
  describe_model_override(schema);
}

}  // namespace titan::detail
