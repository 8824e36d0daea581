// Section model.
#include "section.h"

namespace titan::detail {

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
      .choices({"rmsnorm", "layernorm", "np_layernorm"})
      .any_case()
      .formerly("fused_rmsnorm", "rmsnorm")
      .help("normalisation; fused_rmsnorm is read as rmsnorm, since compile.enable chooses the kernel");
  model.add("rope_scaling", &S::rope_scaling, "default")
      .own()
      .choices({"default", "none", "llama3_1", "llama3_2"})
      .help("scaling of rotary positions; default: what model.name stands for");
  model.add("hf_assets_path", &S::hf_assets_path, "./tests/assets/tokenizer")
      .later()
      .not_empty()
      .help("folder with the tokenizer and, optionally, safetensors weights");
  model.add("tokenizer_path", &S::tokenizer_path, std::nullopt)
      .in_2024(Value("./torchtitan/datasets/tokenizer/tokenizer.model"))
      .not_empty()
      .help("tokenizer, a file or a folder; none: what lies in model.hf_assets_path");
  model.add("converters", &S::converters, {})
      .later()
      .choices({"quantize.linear.float8"})
      .formerly("float8", "quantize.linear.float8")
      .refuses("quantize.linear.mx", mx)
      .refuses("mx", mx)
      .refuses("quantize.grouped_mm.float8", experts)
      .refuses("quantize.grouped_mm.mx", experts)
      .not_built("float8")
      .help("changes made to the model before it is parallelised");
  model.add("print_after_conversion", &S::print_after_conversion, false)
      .later()
      .not_built("float8")
      .only_when(
          {"model.converters names one", [](const JobConfig& config) { return !config.model.converters.empty(); }})
      .help("print the module tree after the converters ran");
}

}  // namespace titan::detail
