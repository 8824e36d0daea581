// Sections activation_checkpoint, compile, quantize.* and the December 2024 remains of float8.
#include <algorithm>

#include "section.h"
#include "titan/base/text.h"

namespace titan::detail {
namespace {

const std::vector<std::string> kFinerPolicies{"norm", "swiglu", "ffn", "qkv", "attention"};

/// Digits, `op`, or a comma list of the finer policies.
std::optional<std::string> wrong_selective_option(const Value& value) {
  const auto& text = std::get<std::string>(value);
  bool digits = !text.empty() && text.size() <= 6 && text.find_first_not_of("0123456789") == std::string::npos;
  if (digits || text == "op") return std::nullopt;
  for (const std::string& word : split(text, ',')) {
    if (std::find(kFinerPolicies.begin(), kFinerPolicies.end(), trim(word)) == kFinerPolicies.end()) {
      return "activation_checkpoint.selective_ac_option = \"" + text + "\" is no such policy";
    }
  }
  return std::nullopt;
}

void describe_recompute(Schema& schema) {
  using S = ActivationCheckpointSection;
  Section section(
      schema, "activation_checkpoint", "Which activations are kept and which are computed again in backward.",
      [](auto& config) -> auto& { return config.activation_checkpoint; });
  const std::string budget = "it needs a compiler that partitions the graph";
  section.add("mode", &S::mode, "selective")
      .choices({"none", "full", "selective"})
      .refuses("memory_budget", budget)
      .help("keep everything, keep only the input of every block, or choose");
  section.add("selective_ac_option", &S::selective_ac_option, "2")
      .integer_spelling()
      .rule("an integer n (every n-th block is recomputed whole), op, or a comma list of " + join(kFinerPolicies, ", "),
            wrong_selective_option)
      .only_when({"activation_checkpoint.mode = \"selective\"",
                  [](const JobConfig& config) { return config.activation_checkpoint.mode == "selective"; }})
      .help("what selective recomputes");
  section.add("offload", &S::offload, false)
      .own()
      .only_when({"activation_checkpoint.mode other than \"none\"",
                  [](const JobConfig& config) { return config.activation_checkpoint.mode != "none"; }})
      .help("keep what recomputed blocks hold in host memory until their backward");
  auto accept = [&](const char* name, ValueType type, Value value, std::string why, const char* help) -> Option& {
    return section.accept(name, type, std::move(value)).later().no_effect(std::move(why)).help(help);
  };
  accept("per_op_sac_force_recompute_mm_shapes_by_fqns", ValueType::text_list,
         Value(std::vector<std::string>{"moe.router.gate"}), "there is no expert router here",
         "products that policy op always recomputes");
  accept("early_stop", ValueType::boolean, Value(false), "recomputation always stops at the last value that is needed",
         "stop recomputing when everything needed is there");
  accept("debug", ValueType::boolean, Value(false),
         "every recomputed value is checked for kind, order and shape anyway", "check what is recomputed");
  accept("memory_budget", ValueType::number, Value(0.5), budget, "share of the activation memory to use");
  accept("visualize_memory_budget_pareto", ValueType::boolean, Value(false), budget, "draw memory against time");
  accept("preserve_rng_state", ValueType::boolean, Value(true), "no layer here draws random numbers",
         "restore random generators before recomputing")
      .in_2024(Value(false));
  accept("determinism_check", ValueType::text, Value("default"), "recomputed shapes are always checked",
         "how recomputed values are compared");
}

void describe_compile(Schema& schema) {
  using S = CompileSection;
  Section section(
      schema, "compile", "Fused kernels and CUDA graphs (on), or plain operations (off), on a GPU.",
      [](auto& config) -> auto& { return config.compile; });
  section.add("enable", &S::enable, false).later().help("use them; on a CPU it changes nothing");
  section.add("components", &S::components, {"model", "loss"})
      .in_2024(Value(std::vector<std::string>{"model"}))
      .later()
      .choices({"model", "loss"})
      .only_when({"compile.enable = true", [](const JobConfig& config) { return config.compile.enable; }})
      .help("where fused kernels are used: blocks and norms, the loss");
  section.add("cuda_graphs", &S::cuda_graphs, true)
      .own()
      .only_when({"compile.enable = true", [](const JobConfig& config) { return config.compile.enable; }})
      .help("record microbatches, or blocks, as CUDA graphs and replay them, where the layout allows it");
  section.accept("backend", ValueType::text, Value("inductor"))
      .later()
      .no_effect("kernels are written by hand, not generated")
      .help("generator of kernels");
}

void describe_linear_float8(Schema& schema) {
  using S = LinearFloat8Section;
  const Condition on{"model.converters has quantize.linear.float8", [](const JobConfig& config) {
                       const auto& converters = config.model.converters;
                       return std::find(converters.begin(), converters.end(), "quantize.linear.float8") !=
                              converters.end();
                     }};
  Section section(
      schema, "quantize.linear.float8", "Linear layers in float8.",
      [](auto& config) -> auto& { return config.quantize.linear.float8; });
  section.add("enable_fsdp_float8_all_gather", &S::enable_fsdp_float8_all_gather, false)
      .help("gather weights as float8");
  section.add("precompute_float8_dynamic_scale_for_fsdp", &S::precompute_float8_dynamic_scale_for_fsdp, false)
      .help("compute all weight scales in one reduction after the optimizer step");
  section.add("recipe_name", &S::recipe_name, std::nullopt)
      .choices({"tensorwise", "rowwise", "rowwise_with_gw_hp"})
      .help("how scales are chosen; none: tensorwise, from the two options above");
  section.add("filter_fqns", &S::filter_fqns, {})
      .in_2024(Value(std::vector<std::string>{"output"}))
      .not_empty()
      .help("layers whose name contains one of these stay as they are; auto_filter_small_kn: the small ones too");
  section.add("emulate", &S::emulate, false).help("compute in float32 with rounding to float8, on any hardware");
  section.add("force_recompute_fp8_weight_in_bwd", &S::force_recompute_fp8_weight_in_bwd, false)
      .help("cast weights again in backward instead of keeping them");
  const Condition keeps{on.text + " and its recipe is tensorwise", [on](const JobConfig& config) {
                          return on.holds(config) &&
                                 config.quantize.linear.float8.recipe_name.value_or("tensorwise") == "tensorwise";
                        }};
  for (Option& option : schema.section_options("quantize.linear.float8")) {
    option.later().only_when(option.key.ends_with(".force_recompute_fp8_weight_in_bwd") ? keeps : on);
  }
}

void describe_other_quantisation(Schema& schema) {
  const std::string mx = "MX formats need a Blackwell GPU";
  const std::string experts = "there are no expert layers here";
  auto root = [](auto& config) -> auto& { return config; };
  Section linear(schema, "quantize.linear.mx", "Linear layers in MX formats.", root);
  linear.accept("recipe_name", ValueType::text, Value("mxfp8_cublas")).later().no_effect(mx).help("format and kernel");
  linear.accept("mxfp8_dim1_cast_kernel_choice", ValueType::text, Value("triton"))
      .later()
      .no_effect(mx)
      .help("cast kernel");
  linear.accept("filter_fqns", ValueType::text_list, Value(std::vector<std::string>{"output"}))
      .later()
      .no_effect(mx)
      .help("layers that stay as they are");
  Section grouped(schema, "quantize.grouped_mm.float8", "Expert layers in float8.", root);
  const Value nothing(std::vector<std::string>{});
  grouped.accept("fqns", ValueType::text_list, nothing).later().no_effect(experts, {nothing}).help("layers to convert");
  Section grouped_mx(schema, "quantize.grouped_mm.mx", "Expert layers in MX formats.", root);
  grouped_mx.accept("recipe_name", ValueType::text, Value("mxfp8"))
      .later()
      .no_effect(experts)
      .help("format and kernel");
  grouped_mx.accept("fqns", ValueType::text_list, nothing)
      .later()
      .no_effect(experts, {nothing})
      .help("layers to convert");
}

void describe_december_float8(Schema& schema) {
  Section section(
      schema, "float8", "Float8 as December 2024 spelled it; only what has no successor.",
      [](auto& config) -> auto& { return config; });
  for (const char* tensor : {"input", "weight", "grad_output"}) {
    section.accept(std::string("scaling_type_") + tensor, ValueType::text, Value("dynamic"))
        .early()
        .choices({"dynamic"})
        .refuses("delayed", "delayed scaling was removed in January 2025; leave the line out")
        .no_effect("scaling is always dynamic")
        .help("how the scale is chosen");
  }
}

}  // namespace

void describe_precision(Schema& schema) {
  describe_recompute(schema);
  describe_compile(schema);
  describe_linear_float8(schema);
  describe_other_quantisation(schema);
  describe_december_float8(schema);
}

}  // namespace titan::detail
