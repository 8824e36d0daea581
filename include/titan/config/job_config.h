// The typed configuration of one job: plain data with the names of torchtitan's last TOML generation. The fields have
// no defaults: schema.h has every default, range and explanation. So load_config() (load.h) or default_config()
// (schema.h) makes a JobConfig, never its constructor. Knows nothing of tensors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "titan/config/choices.h"
#include "titan/config/rotary_scaling.h"

namespace titan {

/// Which torchtitan generation's defaults and formulas apply where the two differ. december_2024.cpp alone decides what
/// follows from it: other parts read the values that it sets.
enum class Generation { december_2024, last_2026 };

/// How the learning rate depends on the step.
enum class RateFormula {
  warm_up_stable_decay,  ///< torchtitan's of 2026: warm-up, a plateau, and a decay of a chosen shape and length
  december_2024          ///< warm-up over one step more, then a linear decay to 0
};

enum class SplitRule;  // schedule/pipeline_plan.h

struct JobSection {
  std::string config_file;  ///< empty: no file, defaults and command line only
  std::string dump_folder;
  std::string description;
  bool print_config{};
  std::optional<std::string> save_config_file;  ///< relative to dump_folder
  std::string generation;                       ///< after loading "2024" or "2026", never "auto"
};

struct ProfilingSection {
  bool enable_profiling{};
  std::string save_traces_folder;
  int64_t profile_freq{};
  int64_t profiler_active{};
  int64_t profiler_warmup{};
  bool enable_memory_snapshot{};
  std::string save_memory_snapshot_folder;
};

struct MetricsSection {
  int64_t log_freq{};
  bool enable_tensorboard{};
  bool disable_color_printing{};
  std::string save_tb_folder;
  bool save_for_all_ranks{};
  bool enable_wandb{};
  bool quiet{};                                ///< only warnings and errors on the console
  std::optional<std::string> prometheus_file;  ///< relative to dump_folder
  bool report{};                               ///< write report.html
  int64_t sample_freq{};                       ///< 0: no samples
  std::string sample_prompt;
  int64_t sample_tokens{};
  double sample_temperature{};
  double straggler_ratio{};  ///< of a rank's compute time to that of the others; 0: ranks are not compared
};

/// Values that replace the flavor's; 0 keeps the flavor's.
struct ModelOverrideSection {
  int64_t dim{};
  int64_t n_layers{};
  int64_t n_heads{};
  int64_t n_kv_heads{};
  int64_t head_dim{};
  int64_t hidden_dim{};
  int64_t multiple_of{};
  int64_t vocab_size{};
  double norm_eps{};
  std::string embeddings{};  ///< default, tied, untied
  double rope_theta{};
  RotaryScaling rope{};  ///< rope_factor, …: numbers that replace those of model.rope_scaling, which gives the kind
};

struct ModelSection {
  std::string from_hf;  ///< folder whose config.json sets the rest of this section; empty: none
  std::string name;     ///< llama2, llama3, llama3_1, llama3_2, llama, mistral, qwen2, qwen3
  std::string flavor;   ///< checked by the model part against the model's table
  NormType norm_type{};
  std::string rope_scaling;
  int64_t max_seq_len{};  ///< 0: the published context
  ModelOverrideSection override_sizes;
  std::string hf_assets_path;
  std::optional<std::string> tokenizer_path;  ///< file or folder; none: hf_assets_path (see tokenizer_location)
  std::vector<std::string> converters;
  bool print_after_conversion{};
};

/// One `[[optimizer.param_groups]]` table: multipliers for the parameters whose name matches.
struct ParamGroup {
  std::string match;  ///< regular expression (ECMAScript), may match anywhere in the parameter's name
  double lr_multiplier{};
  double weight_decay_multiplier{};
  GroupUpdate update{};  ///< which optimizer steps them
};

/// Of the matrices that Muon steps; optimizer.weight_decay and the schedule are shared with AdamW.
struct MuonSection {
  double lr{};  ///< peak learning rate, before the factor of adjust_lr_fn
  double momentum{};
  bool nesterov{};
  std::vector<double> ns_coefficients;  ///< of the Newton–Schulz iteration: X ← aX + (bA + cA²)X with A = XXᵀ
  int64_t ns_steps{};
  double eps{};
  MuonRate adjust_lr_fn{};
  ElementType dtype{};            ///< of the iteration, and of matrices and updates on their way between ranks
  int64_t singular_value_freq{};  ///< steps between two measurements of an update's largest singular value; 0: none
};

struct OptimizerSection {
  OptimizerKind name{};
  double lr{};
  double beta1{};
  double beta2{};
  double eps{};
  double weight_decay{};
  OptimizerImplementation implementation{};
  bool early_step_in_backward{};
  ElementType state_dtype{};  ///< of the moments
  bool offload{};
  std::vector<ParamGroup> param_groups;
  MuonSection muon;
};

struct LrSchedulerSection {
  int64_t warmup_steps{};
  std::optional<int64_t> total_steps{};  ///< none: training.steps
  std::optional<double> decay_ratio{};   ///< none: everything after the warm-up decays
  DecayType decay_type{};
  double min_lr_factor{};
  RateFormula formula{};  ///< no option: follows from the generation
};

struct TrainingSection {
  std::string dataset;  ///< text, mixture, c4, c4_test, c4_validation
  std::optional<std::string> dataset_path;
  int64_t local_batch_size{};
  int64_t global_batch_size{};  ///< -1: local_batch_size × data-parallel degree
  int64_t seq_len{};
  double max_norm{};  ///< 0: gradients are not clipped
  int64_t steps{};
  bool enable_cpu_offload{};
  ElementType dtype{};                   ///< of the parameters (masters)
  ElementType mixed_precision_param{};   ///< compute dtype of forward and backward
  ElementType mixed_precision_reduce{};  ///< dtype in which data-parallel ranks reduce gradients
  std::string device;                    ///< auto, cpu, cuda
  int64_t threads{};                     ///< CPU threads; 0: all cores
  std::string non_finite;                ///< abort, skip
  int64_t max_skipped_steps{};           ///< steps in a row that are not finite; 0: no limit
  std::string spike_guard;               ///< off, warn, skip
  int64_t spike_window{};                ///< preceding steps that loss and norm are compared with
  double spike_threshold{};              ///< standard deviations
  int64_t loss_chunks{};
  ElementType weight_gradient_dtype{};
  ElementType gradient_dtype{};                   ///< of the gradients of blocks, until the optimizer has read them
  bool allow_bf16_reduced_precision_reduction{};  ///< bf16 partial sums in split-K products on a GPU
  std::vector<std::string> keep_fp32;             ///< units whose parameters stay fp32 under mixed precision
};

/// The text of the file that parallelism.pipeline_parallel_schedule_csv names, read when the config is loaded: what the
/// file says belongs to the job, and checks read no file.
struct ScheduleText {
  std::string text;
  std::string error;  ///< why the file cannot be read; empty: it was read, or none is named
};

struct ParallelismSection {
  int64_t data_parallel_replicate_degree{};
  int64_t data_parallel_shard_degree{};  ///< -1: the rest of the world
  ReshardPolicy fsdp_reshard_after_forward{};
  int64_t tensor_parallel_degree{};
  bool disable_loss_parallel{};
  bool enable_async_tensor_parallel{};
  int64_t pipeline_parallel_degree{};
  std::vector<std::string> pipeline_parallel_split_points;
  std::vector<std::vector<std::string>> module_fqns_per_model_part;  ///< empty: split automatically
  int64_t pipeline_parallel_first_stage_less_layers{};
  int64_t pipeline_parallel_last_stage_less_layers{};
  std::optional<int64_t> pipeline_parallel_layers_per_stage;
  std::string pipeline_parallel_schedule;  ///< canonical spelling, for example "Interleaved1F1B"
  std::string pipeline_parallel_schedule_csv;
  SplitRule split_rule{};        ///< no option: follows from the generation
  ScheduleText custom_schedule;  ///< no option: what pipeline_parallel_schedule_csv names
  int64_t pipeline_parallel_microbatch_size{};
  int64_t context_parallel_degree{};
  Rotation context_parallel_rotate_method{};
  LoadBalance context_parallel_load_balancer{};
};

struct CheckpointSection {
  bool enable{};
  std::string folder;
  int64_t interval{};          ///< steps
  int64_t interval_seconds{};  ///< above 0: save at this interval of time instead of steps
  std::optional<std::string> initial_load_path;
  bool initial_load_model_only{};
  bool initial_load_in_hf{};
  bool initial_load_in_hf_quantized{};
  bool last_save_model_only{};
  bool last_save_in_hf{};
  std::string export_dtype;
  bool create_seed_checkpoint{};
  std::string async_mode;  ///< disabled, async, async_with_pinned_mem
  int64_t keep_latest_k{};
  int64_t keep_every{};  ///< 0: off; n: checkpoints at multiples of n steps are never purged
  int64_t load_step{};
  std::vector<std::string> exclude_from_loading;
  bool enable_first_step_checkpoint{};
  bool load_only{};
  bool require_resume{};
  std::string on_commit;  ///< command to run after each commit, with {dir} replaced; empty: none
};

struct ActivationCheckpointSection {
  std::string mode;                 ///< none, full, selective
  std::string selective_ac_option;  ///< digits, "op", or a comma list of norm, swiglu, ffn, qkv, attention
  bool offload{};
};

struct CompileSection {
  bool enable{};
  std::vector<std::string> components;
  bool cuda_graphs{};
};

struct LinearFloat8Section {
  bool enable_fsdp_float8_all_gather{};
  bool precompute_float8_dynamic_scale_for_fsdp{};
  std::optional<Float8Recipe> recipe_name{};  ///< none: tensorwise
  std::vector<std::string> filter_fqns{};     ///< layers that stay as they are, and perhaps kSmallLayersFilter
  bool emulate{};
  bool force_recompute_fp8_weight_in_bwd{};
};

struct LinearQuantizeSection {
  LinearFloat8Section float8;
};

struct QuantizeSection {
  LinearQuantizeSection linear;
};

struct CommSection {
  int64_t init_timeout_seconds{};
  int64_t train_timeout_seconds{};
  int64_t trace_buf_size{};
  std::string save_traces_folder;
  std::string save_traces_file_prefix;
  std::string mode;  ///< default, fake_backend, local_tensor
  std::optional<int64_t> rank;
  std::optional<int64_t> world_size;
  std::optional<std::string> master;  ///< host:port
  bool shared_memory{};
};

struct MemoryEstimationSection {
  bool enable{};
};

struct ValidationSection {
  bool enable{};
  std::string dataset;
  std::optional<std::string> dataset_path;
  int64_t local_batch_size{};
  int64_t seq_len{};
  int64_t freq{};
  int64_t steps{};  ///< -1: the whole dataset
};

struct DebugSection {
  std::optional<int64_t> seed;
  bool deterministic{};
  bool deterministic_warn_only{};
  std::string attention_kernel;  ///< auto, cudnn, flash, efficient
  std::vector<int64_t> dump_steps;
  bool dump_logits{};
  bool sync_check{};
  bool groups_of_one{};
  bool share_gpu{};
  int64_t replica_check_steps{};  ///< period of the checks of weights and moments (train/state_check.h); 0: none
  int64_t replay_steps{};         ///< period of replays of a microbatch; 0: none
  bool replay_on_neighbours{};    ///< data-parallel ranks replay one microbatch, and compare
};

/// One `[[data.mixture]]` table: a source and its share of the tokens.
struct MixtureSource {
  std::string path;
  double weight{};
  std::string text_field;  ///< empty: data.text_field
  std::string dataset;     ///< text, chat, nanogpt
};

/// A custom chat template.
struct ChatSection {
  std::string begin{};
  std::string system_prefix{}, system_suffix{};
  std::string user_prefix{}, user_suffix{};
  std::string assistant_prefix{}, assistant_suffix{};
};

struct DataSection {
  std::string bad_record;  ///< error, skip
  int64_t timeout{};       ///< seconds
  int64_t prefetch{};      ///< batches kept ready
  std::string text_field;
  std::string order;  ///< documents, megatron
  std::string megatron_split;
  int64_t megatron_seed{};
  std::string split;  ///< global, upstream
  bool shuffle{};
  int64_t shuffle_seed{};
  std::string packing;  ///< upstream, lossless, document
  std::vector<MixtureSource> mixture;
  std::string chat_template;       ///< auto, llama3, llama3_1, llama2, chatml, custom
  std::string chat_loss;           ///< assistant, all
  std::string long_conversations;  ///< cut, drop
  std::vector<std::string> ignore_fields;
  ChatSection chat;
};

struct JobConfig {
  JobSection job;
  ProfilingSection profiling;
  MetricsSection metrics;
  ModelSection model;
  OptimizerSection optimizer;
  LrSchedulerSection lr_scheduler;
  TrainingSection training;
  ParallelismSection parallelism;
  CheckpointSection checkpoint;
  ActivationCheckpointSection activation_checkpoint;
  CompileSection compile;
  QuantizeSection quantize;
  CommSection comm;
  MemoryEstimationSection memory_estimation;
  ValidationSection validation;
  DebugSection debug;
  DataSection data;
};

/// True if training reads conversations, alone or in a mixture.
inline bool trains_on_chat(const JobConfig& config) {
  if (config.training.dataset != "mixture") return config.training.dataset == "chat";
  for (const MixtureSource& source : config.data.mixture) {
    if (source.dataset == "chat") return true;
  }
  return false;
}

/// Path of the tokenizer, a file or a folder: model.tokenizer_path if given, else model.hf_assets_path.
inline const std::string& tokenizer_location(const JobConfig& config) {
  return config.model.tokenizer_path ? *config.model.tokenizer_path : config.model.hf_assets_path;
}

}  // namespace titan
