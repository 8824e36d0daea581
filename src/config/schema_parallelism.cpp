// Sections parallelism and comm.
#include <algorithm>

#include "section.h"

namespace titan::detail {
namespace {

/// Weights that are gathered: from other ranks, or from the host.
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
  parallelism.add("fsdp_reshard_after_forward", &S::fsdp_reshard_after_forward, "default")
      .later()
      .choices({"default", "always", "never"})
      .only_when(gathered())
      .help("free gathered parameters after use: blocks by default without a pipeline; all, or none");
  degree("tensor_parallel_degree", &S::tensor_parallel_degree, "ranks that share every matrix");
  parallelism.add("disable_loss_parallel", &S::disable_loss_parallel, false)
      .later()
      .only_when(tensor_parallel())
      .help("gather the logits instead of computing the loss on shards of the vocabulary");
  parallelism.add("enable_async_tensor_parallel", &S::enable_async_tensor_parallel, false)
      .later()
      .only_when(tensor_parallel())
      .help("overlap tensor-parallel communication with products; ranks on one host");
  degree("context_parallel_degree", &S::context_parallel_degree, "ranks that share every sequence");
  parallelism.add("context_parallel_rotate_method", &S::context_parallel_rotate_method, "allgather")
      .later()
      .choices({"allgather", "alltoall"})
      .only_when(context_parallel())
      .help("how keys and values travel: all at once, or around a ring");
  parallelism.add("context_parallel_load_balancer", &S::context_parallel_load_balancer, "headtail")
      .later()
      .choices({"headtail", "none"})
      .refuses("ptrr", "it balances the block masks of flex attention, which is not used here; headtail is the nearest")
      .only_when(context_parallel())
      .help("how a sequence is dealt out over the ranks");
}

template <class Fields>
void describe_pipeline(Fields& parallelism) {
  using S = ParallelismSection;
  parallelism.add("pipeline_parallel_degree", &S::pipeline_parallel_degree, 1)
      .later()
      .at_least(1)
      .at_most(kMostRanks)
      .help("ranks that share the layers");
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
  const std::string nobody = "one process waits for nobody";
  const std::string no_address = "one process needs no address";
  Section comm(
      schema, "comm", "How the processes of a run find and watch each other (docs/launch.md).",
      [](auto& config) -> auto& { return config.comm; });
  comm.add("init_timeout_seconds", &S::init_timeout_seconds, 300)
      .at_least(1)
      .at_most(1e9)
      .among_several(nobody)
      .help("how long ranks wait for each other at the start; limit of a collective until the end of the first step");
  comm.add("train_timeout_seconds", &S::train_timeout_seconds, 100)
      .at_least(1)
      .at_most(1e9)
      .among_several(nobody)
      .help("limit of a collective afterwards");
  comm.add("trace_buf_size", &S::trace_buf_size, 20000)
      .at_least(0)
      .at_most(1e7)
      .among_several(nobody)
      .help("collectives that a rank remembers, to write them down when a rank hangs or is lost; 0: none");
  comm.add("save_traces_folder", &S::save_traces_folder, "comm_traces")
      .later()
      .not_empty()
      .among_several(nobody)
      .help("folder of what they remember, under job.dump_folder");
  comm.add("save_traces_file_prefix", &S::save_traces_file_prefix, "rank_")
      .later()
      .among_several(nobody)
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
      .among_several("one process has nobody to share memory with")
      .help("CPU ranks of one host talk through memory that they share; false: through sockets (Gloo)");
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

}  // namespace titan::detail
