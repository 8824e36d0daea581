// Section model.
#include "section.h"

namespace titan::detail {

namespace {

/// Sizes for experiments and tests, in place of the flavor's.
void describe_model_override(Schema& schema) {
  using S = ModelOverrideSection;
  Section sizes(
      schema, "model.override", "Sizes of the model in place of its flavor's; 0 keeps the flavor's.",
      [](auto& config) -> auto& { return config.model.override_sizes; });
  sizes.add("dim", &S::dim, 0).own().at_least(0).at_most(kWidestModel).help("width of the residual stream");
  sizes.add("n_layers", &S::n_layers, 0).own().at_least(0).at_most(kMostLayers).help("transformer blocks");
  sizes.add("n_heads", &S::n_heads, 0).own().at_least(0).help("attention heads");
  sizes.add("n_kv_heads", &S::n_kv_heads, 0)
      .own()
      .at_least(0)
      .help("heads of keys and values; with n_heads given, 0 means as many");
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
}

}  // namespace

void describe_model(Schema& schema) {
  using S = ModelSection;
  const std::string mx = "MX formats need a Blackwell GPU";
  const std::string experts = "there are no expert layers here";
  Section model(
      schema, "model", "Which model, and the files that belong to it.",
      [](auto& config) -> auto& { return config.model; });
  model.add("name", &S::name, "llama3")
      .choices({"llama2", "llama3", "llama3_1", "llama3_2"})
      .help("model family; it also decides the scaling of rotary positions");
  model.add("flavor", &S::flavor, "debugmodel")
      .not_empty()
      .help("size of the model, for example debugmodel, 8B, 70B, 405B");
  model.add("norm_type", &S::norm_type, "rmsnorm")
      .early()
      .choices({"rmsnorm", "fused_rmsnorm", "layernorm", "np_layernorm"})
      .any_case()
      .help("normalisation; fused_rmsnorm rounds once, after the weight, where rmsnorm also rounds before it");
  model.add("rope_scaling", &S::rope_scaling, "default")
      .own()
      .choices({"default", "none", "llama3_1", "llama3_2"})
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
