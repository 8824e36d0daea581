// Sections parallelism and comm.

#include <algorithm>

#include "titan/base/text.h"
#include "titan/config/section.h"

namespace titan::detail {

namespace {

/// Holds if weights are gathered, from other ranks or from the host.
Condition gathered() {
  return {
      "parallelism.data_parallel_shard_degree other than 1, context_parallel_degree above 1, or "
      "training.enable_cpu_offload",
      [](const JobConfig& config) {
        return config.parallelism.data_parallel_shard_degree != 1 || config.parallelism.context_parallel_degree > 1 ||
               config.training.enable_cpu_offload;
      }};
}
Condition tensor_parallel() {
  return {"parallelism.tensor_parallel_degree above 1",
          [](const JobConfig& config) { return config.parallelism.tensor_parallel_degree > 1; }};
}
Condition pipelined() {
  return {"parallelism.pipeline_parallel_degree above 1",
          [](const JobConfig& config) { return config.parallelism.pipeline_parallel_degree > 1; }};
}
Condition context_parallel() {
  return {"parallelism.context_parallel_degree above 1",
          [](const JobConfig& config) { return config.parallelism.context_parallel_degree > 1; }};
}

template <class Fields>
void describe_degrees(Fields& parallelism) {
  using S = ParallelismSection;
  auto degree = [&](const char* name, int64_t S::*member, const char* help) -> Option& {
    return parallelism.add(name, member, 1).at_least(1).at_most(kMostRanks).later().help(help);
  };
  degree("data_parallel_replicate_degree", &S::data_parallel_replicate_degree,
         "replicas of the model: DDP, or the outer axis of HSDP");
  parallelism.add("data_parallel_shard_degree", &S::data_parallel_shard_degree, -1)
      .later()
      .at_least(1)
      .at_most(kMostRanks)
      .or_else(-1)
      .help("ranks over which parameters, gradients and states are sharded (FSDP); -1: all that are left");
  parallelism.add("fsdp_reshard_after_forward", &S::fsdp_reshard_after_forward, ReshardPolicy::standard)
      .later()
      .only_when(gathered())
      .help("free gathered weights after use: blocks unless in a pipeline (default), all (always), none (never)");
  degree("tensor_parallel_degree", &S::tensor_parallel_degree, "tensor-parallel ranks, which split every matrix");
  parallelism.add("disable_loss_parallel", &S::disable_loss_parallel, false)
      .later()
      .only_when(tensor_parallel())
      .help("gather the logits instead of computing the loss on shards of the vocabulary");
  parallelism.add("enable_async_tensor_parallel", &S::enable_async_tensor_parallel, false)
      .later()
      .only_when(tensor_parallel())
      .help("overlap tensor-parallel communication with products; ranks on one host");
  degree("context_parallel_degree", &S::context_parallel_degree, "context-parallel ranks, which split every sequence");
  parallelism.add("context_parallel_rotate_method", &S::context_parallel_rotate_method, Rotation::all_gather)
      .later()
      .only_when(context_parallel())
      .help("how keys and values are exchanged: all at once, or around a ring");
  parallelism.add("context_parallel_load_balancer", &S::context_parallel_load_balancer, LoadBalance::head_tail)
      .later()
      .refuses("ptrr", "it balances the block masks of flex attention, which is not used here; headtail is the nearest")
      .only_when(context_parallel())
      .help("how sequences are sharded over the ranks");
}

template <class Fields>
void describe_pipeline(Fields& parallelism) {
  using S = ParallelismSection;
  parallelism.add("pipeline_parallel_degree", &S::pipeline_parallel_degree, 1)
      .later()
      .at_least(1)
      .at_most(kMostRanks)
      .help("pipeline ranks, which split the layers");
  auto in_pipeline = [&](Option& option) -> Option& { return option.later().only_when(pipelined()); };
  in_pipeline(parallelism.add("pipeline_parallel_schedule", &S::pipeline_parallel_schedule, "1F1B"))
      .choices({"1F1B", "GPipe", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV",
                "PipelineScheduleSingle", "PipelineScheduleMulti"})
      .any_case()
      .help("order of forward and backward work over the stages");
  in_pipeline(parallelism.add("pipeline_parallel_schedule_csv", &S::pipeline_parallel_schedule_csv, ""))
      .help("file with a schedule of your own (PipelineScheduleSingle or PipelineScheduleMulti)");
  in_pipeline(parallelism.add("pipeline_parallel_microbatch_size", &S::pipeline_parallel_microbatch_size, 1))
      .at_least(1)
      .help("sequences per pipeline microbatch; divides training.local_batch_size");
  in_pipeline(
      parallelism.add("pipeline_parallel_layers_per_stage", &S::pipeline_parallel_layers_per_stage, std::nullopt))
      .at_least(1)
      .help("layers per stage, from which the number of stages follows");
  in_pipeline(
      parallelism.add("pipeline_parallel_first_stage_less_layers", &S::pipeline_parallel_first_stage_less_layers, 1))
      .at_least(0)
      .help("layers the embedding counts for when stages are balanced");
  in_pipeline(
      parallelism.add("pipeline_parallel_last_stage_less_layers", &S::pipeline_parallel_last_stage_less_layers, 1))
      .at_least(0)
      .help("layers that the last norm and the output count for");
  in_pipeline(parallelism.add("pipeline_parallel_split_points", &S::pipeline_parallel_split_points, {}))
      .not_empty()
      .help("first layer of each stage after the first, for example layers.2,layers.4");
  in_pipeline(parallelism.add("module_fqns_per_model_part", &S::module_fqns_per_model_part, {}))
      .help("the modules of each stage, one list per stage (on the command line: a,b;c,d)");
}

template <class Fields>
void describe_experts(Fields& parallelism) {
  const std::string why = "there are no expert layers here";
  auto one = [&](const char* name, const char* help) {
    parallelism.accept(name, ValueType::integer, Value(int64_t{1}))
        .later()
        .no_effect(why, {Value(int64_t{1})})
        .help(help);
  };
  one("expert_parallel_degree", "ranks that share the experts");
  one("expert_tensor_parallel_degree", "ranks that share every expert's matrices");
  parallelism.accept("expert_parallel_comm_backend", ValueType::text, Value("standard"))
      .later()
      .choices({"standard", "deepep"})
      .no_effect(why, {Value("standard")})
      .help("communication of expert layers");
  parallelism.accept("pipeline_parallel_expert_parallel_overlap", ValueType::boolean, Value(true))
      .later()
      .no_effect(why)
      .help("overlap expert communication with other microbatches (DualPipeV)");
  parallelism.accept("enable_compiled_autograd", ValueType::boolean, Value(false))
      .later()
      .no_effect("backward is not traced by a Python compiler")
      .help("trace and compile backward");
}

void describe_comm(Schema& schema) {
  using S = CommSection;
  const std::string no_others = "a single process has no other ranks to wait for";
  const std::string no_address = "one process needs no address";
  Section comm(
      schema, "comm", "How the processes of a run find and watch each other (docs/launch.md).",
      [](auto& config) -> auto& { return config.comm; });
  comm.add("init_timeout_seconds", &S::init_timeout_seconds, 300)
      .at_least(1)
      .at_most(1e9)
      .among_several(no_others)
      .help("how long ranks wait for each other at the start; limit of a collective until the end of the first step");
  comm.add("train_timeout_seconds", &S::train_timeout_seconds, 100)
      .at_least(1)
      .at_most(1e9)
      .among_several(no_others)
      .help("limit of a collective afterwards");
  comm.add("trace_buf_size", &S::trace_buf_size, 20000)
      .at_least(0)
      .at_most(1e7)
      .among_several(no_others)
      .help("collectives kept in a ring buffer, which is dumped when a rank hangs or is lost; 0: none");
  comm.add("save_traces_folder", &S::save_traces_folder, "comm_traces")
      .later()
      .not_empty()
      .among_several(no_others)
      .help("folder of these dumps, under job.dump_folder");
  comm.add("save_traces_file_prefix", &S::save_traces_file_prefix, "rank_")
      .later()
      .among_several(no_others)
      .help("beginning of the files' names; the rank and .json follow");
  comm.add("mode", &S::mode, "default")
      .later()
      .choices({"default", "fake_backend"})
      .refuses(
          "local_tensor",
          "\"fake_backend\" is the dry run of one rank, and titan_train launch -n N runs all ranks on this machine")
      .help("real communication, or a dry run: comm.rank of comm.world_size alone in one process");
  comm.add("rank", &S::rank, std::nullopt)
      .own()
      .at_least(0)
      .among_several(no_address)
      .help("this process's rank, when no launcher says it");
  comm.add("world_size", &S::world_size, std::nullopt)
      .own()
      .at_least(1)
      .at_most(kMostRanks)
      .help("number of processes, when no launcher says it");
  comm.add("master", &S::master, std::nullopt)
      .own()
      .not_empty()
      .among_several(no_address)
      .help("host:port where rank 0 listens");
  comm.add("shared_memory", &S::shared_memory, true)
      .own()
      .among_several("a single process has no other rank to share memory with")
      .help("CPU ranks of one host communicate through shared memory; false: through sockets (Gloo)");
}

}  // namespace

void describe_parallelism(Schema& schema) {
  Section parallelism(
      schema, "parallelism", "How the work is divided over ranks; degrees multiply to the world size.",
      [](auto& config) -> auto& { return config.parallelism; });
  describe_degrees(parallelism);
  describe_pipeline(parallelism);
  describe_experts(parallelism);
  describe_comm(schema);
}

// Sections activation_checkpoint, compile, quantize.* and the float8 options of December 2024.

namespace {

const std::vector<std::string> kFinerPolicies{"norm", "swiglu", "ffn", "qkv", "attention"};

/// Allowed: digits, `op`, or a comma-separated list of finer policies.
std::optional<std::string> wrong_selective_option(const Value& value) {
  const auto& text = std::get<std::string>(value);
  bool digits = !text.empty() && text.size() <= 6 && text.find_first_not_of("0123456789") == std::string::npos;
  if (digits || text == "op") return std::nullopt;
  for (const std::string& word : split(text, ',')) {
    if (std::find(kFinerPolicies.begin(), kFinerPolicies.end(), trim(word)) == kFinerPolicies.end()) {
      return "activation_checkpoint.selective_ac_option = \"" + text + "\" is not a valid policy";
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
      .help("how scales are chosen; none: tensorwise, from the two options above");
  section.add("filter_fqns", &S::filter_fqns, {})
      .in_2024(Value(std::vector<std::string>{"output"}))
      .not_empty()
      .help("layers whose name contains one of these stay as they are; auto_filter_small_kn: the small ones too");
  section.add("emulate", &S::emulate, false).help("compute in float32 with rounding to float8, on any hardware");
  section.add("force_recompute_fp8_weight_in_bwd", &S::force_recompute_fp8_weight_in_bwd, false)
      .help("cast weights again in backward instead of keeping them");
  const Condition keeps{on.text + " and its recipe is tensorwise", [on](const JobConfig& config) {
                          return on.holds(config) && config.quantize.linear.float8.recipe_name.value_or(
                                                         Float8Recipe::tensorwise) == Float8Recipe::tensorwise;
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
