// Sections job, profiling and metrics.

#include "titan/config/section.h"

namespace titan::detail {

namespace {

Condition profiling_on() {
  return {"profiling.enable_profiling = true",
          [](const JobConfig& config) { return config.profiling.enable_profiling; }};
}

Condition any_profiling_on() {
  return {"profiling.enable_profiling or profiling.enable_memory_snapshot = true", [](const JobConfig& config) {
            return config.profiling.enable_profiling || config.profiling.enable_memory_snapshot;
          }};
}

void describe_job_section(Schema& schema) {
  using S = JobSection;
  Section job(
      schema, "job", "The run as a whole: its config file, its outputs, its generation of defaults.",
      [](auto& config) -> auto& { return config.job; });
  job.add("config_file", &S::config_file, "").help("TOML file to read; `titan_train FILE` says the same");
  job.add("dump_folder", &S::dump_folder, "./outputs")
      .in_2024(Value("./torchtitan/outputs"))
      .not_empty()
      .help("folder of every output of the run");
  job.add("description", &S::description, "default job").help("free text, printed when the run starts");
  job.add("print_config", &S::print_config, false).later().help("print the merged config when the run starts");
  job.add("save_config_file", &S::save_config_file, std::nullopt)
      .later()
      .not_empty()
      .help(
          "also write the merged config to this file under job.dump_folder: TOML when its name ends in .toml, else "
          "JSON");
  job.add("generation", &S::generation, "auto")
      .own()
      .choices({"auto", "2024", "2026"})
      .integer_spelling()
      .help(
          "era of defaults and formulas: torchtitan of December 2024 or of February 2026; auto: by the file's "
          "spelling");
  job.accept("use_for_integration_test", ValueType::boolean, Value(false))
      .no_effect("it only marks presets for torchtitan's own test driver")
      .help("marks a preset for an integration-test driver");
  job.accept("custom_config_module", ValueType::text, Value(""))
      .later()
      .no_effect("a Python module cannot extend this program's schema", {Value("")})
      .help("Python module that extends the schema");
}

void describe_profiling(Schema& schema) {
  using S = ProfilingSection;
  Section profiling(
      schema, "profiling", "Traces of single steps and snapshots of memory.",
      [](auto& config) -> auto& { return config.profiling; });
  profiling.add("enable_profiling", &S::enable_profiling, false).help("write a trace of one step per period");
  profiling.add("save_traces_folder", &S::save_traces_folder, "profile_traces")
      .not_empty()
      .only_when(profiling_on())
      .help("folder of traces, under job.dump_folder");
  profiling.add("profile_freq", &S::profile_freq, 10)
      .at_least(1)
      .only_when(any_profiling_on())
      .help("period of traces and memory snapshots in steps");
  profiling.add("profiler_active", &S::profiler_active, 1)
      .later()
      .at_least(1)
      .only_when(profiling_on())
      .help("steps traced per period");
  profiling.add("profiler_warmup", &S::profiler_warmup, 3)
      .later()
      .at_least(0)
      .only_when(profiling_on())
      .help("steps before them that warm the profiler up");
  profiling.add("enable_memory_snapshot", &S::enable_memory_snapshot, false)
      .help("dump the allocator's history once per period and when memory runs out");
  profiling.add("save_memory_snapshot_folder", &S::save_memory_snapshot_folder, "memory_snapshot")
      .not_empty()
      .only_when({"profiling.enable_memory_snapshot = true",
                  [](const JobConfig& config) { return config.profiling.enable_memory_snapshot; }})
      .help("folder of memory snapshots, under job.dump_folder");
}

void describe_metrics(Schema& schema) {
  using S = MetricsSection;
  Section metrics(
      schema, "metrics", "What is shown and recorded while training.",
      [](auto& config) -> auto& { return config.metrics; });
  metrics.add("log_freq", &S::log_freq, 10)
      .at_least(1)
      .help("steps between two lines (the first and the last step are always shown)");
  metrics.add("enable_tensorboard", &S::enable_tensorboard, false).help("write TensorBoard event files");
  metrics.add("disable_color_printing", &S::disable_color_printing, false)
      .help("no colours (there are none anyway when the output is not a terminal)");
  metrics.add("save_tb_folder", &S::save_tb_folder, "tb")
      .not_empty()
      .only_when({"metrics.enable_tensorboard = true",
                  [](const JobConfig& config) { return config.metrics.enable_tensorboard; }})
      .help("folder of TensorBoard files, under job.dump_folder");
  metrics.add("save_for_all_ranks", &S::save_for_all_ranks, false)
      .later()
      .among_several("its one rank writes its metrics anyway")
      .help(
          "every rank writes its metrics, those other than rank 0 to rank-NNNN/metrics.jsonl, TensorBoard's to rank_N");
  metrics.add("enable_wandb", &S::enable_wandb, false)
      .help("say how to hand the run over to Weights & Biases: scripts/to_wandb.py does it");
  metrics.add("prometheus_file", &S::prometheus_file, std::nullopt)
      .own()
      .not_empty()
      .help("file for Prometheus' node_exporter (textfile collector), under job.dump_folder unless absolute");
  metrics.add("report", &S::report, true)
      .own()
      .help("keep report.html, a page of the run's curves, under job.dump_folder");
  const Condition samples{"metrics.sample_freq is above 0",
                          [](const JobConfig& config) { return config.metrics.sample_freq > 0; }};
  metrics.add("sample_freq", &S::sample_freq, 0)
      .own()
      .at_least(0)
      .help("steps between generated samples (in the log, metrics.jsonl and the page); 0: none");
  metrics.add("sample_prompt", &S::sample_prompt, "")
      .own()
      .only_when(samples)
      .help("prompt of these samples; in a run on conversations: the user's message");
  metrics.add("sample_tokens", &S::sample_tokens, 64)
      .own()
      .at_least(1)
      .only_when(samples)
      .help("maximum new tokens of a sample");
  metrics.add("sample_temperature", &S::sample_temperature, 0.8)
      .own()
      .at_least(0)
      .only_when(samples)
      .help("sampling temperature; 0: greedy");
  metrics.add("straggler_ratio", &S::straggler_ratio, 1.15)
      .own()
      .among_several("a single process has no other rank to compare with")
      .rule("0, or above 1",
            [](const Value& value) -> std::optional<std::string> {
              const double ratio = std::get<double>(value);
              if (ratio == 0 || ratio > 1) return std::nullopt;
              return "metrics.straggler_ratio is a ratio to the median rank: above 1, or 0 to compare no ranks";
            })
      .help("a rank is reported as slow if its compute time is this many times the median for 20 steps; 0: never");
  metrics.add("quiet", &S::quiet, false).own().help("only warnings and errors on the console; --quiet says the same");
}

}  // namespace

void describe_job(Schema& schema) {
  describe_job_section(schema);
  describe_profiling(schema);
  describe_metrics(schema);
}

// Sections debug, memory_estimation and experimental.

namespace {

void describe_debug_section(Schema& schema) {
  using S = DebugSection;
  Section debug(
      schema, "debug", "Reproducing a run and looking inside it.", [](auto& config) -> auto& { return config.debug; });
  debug.add("seed", &S::seed, std::nullopt)
      .later()
      .at_least(0)
      .help("seed of the initial weights and of generated text; none: drawn when the run starts, and shown");
  debug.add("deterministic", &S::deterministic, false).later().help("only operations whose result does not vary");
  debug.add("deterministic_warn_only", &S::deterministic_warn_only, false)
      .later()
      .only_when({"debug.deterministic = true", [](const JobConfig& config) { return config.debug.deterministic; }})
      .help("warn of an operation that has no deterministic form instead of ending the run");
  debug.add("attention_kernel", &S::attention_kernel, "auto")
      .own()
      .choices({"auto", "cudnn", "flash", "efficient"})
      .help("the attention kernel on a GPU; auto: the fastest of them in the shape of the run");
  debug.add("dump_steps", &S::dump_steps, {})
      .own()
      .at_least(1)
      .help("steps whose tensors are written to debug/step-N/step.safetensors under job.dump_folder");
  debug.add("dump_logits", &S::dump_logits, false)
      .own()
      .only_when(
          {"debug.dump_steps names a step", [](const JobConfig& config) { return !config.debug.dump_steps.empty(); }})
      .help("write the logits too");
  debug.add("sync_check", &S::sync_check, false)
      .own()
      .help("make a call that waits for the GPU within a step an error; on a CPU, operations that would wait for one");
  debug.add("groups_of_one", &S::groups_of_one, false)
      .own()
      .help("communicate in groups of one rank too, which send nothing: one GPU alone then uses NCCL");
  debug.add("share_gpu", &S::share_gpu, false)
      .own()
      .among_several("one process has its GPU alone")
      .help("let several ranks use one GPU, for checks only: NCCL then uses sockets");
  debug.add("replica_check_steps", &S::replica_check_steps, 100)
      .own()
      .at_least(0)
      .help("steps between checks that weights and moments have the bits that the optimizer wrote; 0: none");
  debug.add("replay_steps", &S::replay_steps, 0)
      .own()
      .at_least(0)
      .help("steps between replays of a microbatch, which must give the same bits; 0: none");
  debug.add("replay_on_neighbours", &S::replay_on_neighbours, false)
      .own()
      .among_several("one process has no neighbour")
      .only_when(
          {"debug.replay_steps is above 0", [](const JobConfig& config) { return config.debug.replay_steps > 0; }})
      .help("data-parallel ranks also replay one and the same microbatch, and compare");
  debug.accept("moe_force_load_balance", ValueType::boolean, Value(false))
      .later()
      .no_effect("there are no expert layers here", {Value(false)})
      .help("send tokens to experts evenly");
}

}  // namespace

void describe_debug(Schema& schema) {
  describe_debug_section(schema);
  Section estimation(
      schema, "memory_estimation", "Predicting memory instead of training.",
      [](auto& config) -> auto& { return config.memory_estimation; });
  estimation.add("enable", &MemoryEstimationSection::enable, false)
      .later()
      .help("show what one rank would take by purpose and by unit, instead of training");
  estimation.accept("disable_fake_mode", ValueType::boolean, Value(false))
      .no_effect("the prediction never needs real tensors")
      .help("measure with real tensors");
  Section experimental(
      schema, "experimental", "Options on trial.", [](auto& config) -> auto& { return config; });
  experimental.accept("custom_import", ValueType::text, Value(""))
      .later()
      .no_effect("a Python module cannot be imported", {Value("")})
      .help("Python module to import first");
  experimental.accept("enable_compiled_autograd", ValueType::boolean, Value(false))
      .early()
      .no_effect("backward is not traced by a Python compiler")
      .help("trace and compile backward");
}

// Sections checkpoint and fault_tolerance.

namespace {

void describe_fault_tolerance(Schema& schema) {
  const std::string why = "TorchFT is a Python system; a run is restarted from its checkpoints here";
  Section section(
      schema, "fault_tolerance", "Fault tolerance by replica groups (TorchFT).",
      [](auto& config) -> auto& { return config; });
  auto accept = [&](const char* name, ValueType type, Value value, const char* help) -> Option& {
    return section.accept(name, type, std::move(value)).later().no_effect(why).help(help);
  };
  accept("enable", ValueType::boolean, Value(false), "train in replica groups").no_effect(why, {Value(false)});
  accept("process_group", ValueType::text, Value("gloo"), "backend between replica groups");
  accept("process_group_timeout_ms", ValueType::integer, Value(int64_t{10000}), "its limit in milliseconds");
  accept("replica_id", ValueType::integer, Value(int64_t{0}), "number of this replica group");
  accept("group_size", ValueType::integer, Value(int64_t{0}), "number of replica groups");
  accept("min_replica_size", ValueType::integer, Value(int64_t{1}), "groups needed to continue");
  accept("semi_sync_method", ValueType::text, Value(), "local_sgd or diloco").no_effect(why, {Value()});
}

template <class Fields>
void describe_saving(Fields& checkpoint) {
  using S = CheckpointSection;
  checkpoint.add("folder", &S::folder, "checkpoint").not_empty().help("folder of checkpoints, under job.dump_folder");
  checkpoint.add("interval", &S::interval, 500).at_least(1).help("steps between two checkpoints");
  checkpoint.add("interval_seconds", &S::interval_seconds, 0)
      .own()
      .at_least(0)
      .help("seconds between two checkpoints, instead of steps; 0: by steps");
  checkpoint.add("async_mode", &S::async_mode, "disabled")
      .choices({"disabled", "async", "async_with_pinned_mem"})
      .any_case()
      .help("write while training continues");
  checkpoint.add("keep_latest_k", &S::keep_latest_k, 10)
      .in_2024(Value(int64_t{0}))
      .at_least(0)
      .rule(
          "not 1",
          [](const Value& value) -> std::optional<std::string> {
            if (std::get<int64_t>(value) != 1) return std::nullopt;
            return "checkpoint.keep_latest_k = 1 could delete the only good checkpoint while the next is being written";
          })
      .help("checkpoints kept; 0: all");
  checkpoint.add("keep_every", &S::keep_every, 0)
      .own()
      .at_least(0)
      .help("checkpoints at multiples of this many steps are never deleted; 0: none are special");
  checkpoint.add("enable_first_step_checkpoint", &S::enable_first_step_checkpoint, false)
      .later()
      .help("also save after the first step");
  checkpoint.add("last_save_model_only", &S::last_save_model_only, true)
      .in_2024(Value(false))
      .later()
      .help("the last checkpoint holds the model alone (training cannot resume from it)");
  checkpoint.add("last_save_in_hf", &S::last_save_in_hf, false)
      .later()
      .help("write the last checkpoint as Hugging Face safetensors");
  checkpoint.add("export_dtype", &S::export_dtype, "float32")
      .choices({"float16", "bfloat16", "float32"})
      .only_when(
          {"checkpoint.enable and checkpoint.last_save_model_only = true",
           [](const JobConfig& config) { return config.checkpoint.enable && config.checkpoint.last_save_model_only; }})
      .help("dtype of a last checkpoint that holds the model alone");
  checkpoint.add("create_seed_checkpoint", &S::create_seed_checkpoint, false)
      .help("save step 0 from one process and exit");
  checkpoint.add("on_commit", &S::on_commit, "")
      .own()
      .help("command run after each committed checkpoint; {dir} stands for its folder");
}

template <class Fields>
void describe_loading(Fields& checkpoint) {
  using S = CheckpointSection;
  checkpoint.add("load_step", &S::load_step, -1).at_least(0).or_else(-1).help("step to load; -1: the newest");
  checkpoint.add("load_only", &S::load_only, false).later().help("load, never save");
  checkpoint.add("require_resume", &S::require_resume, false)
      .own()
      .help("end with an error when there is no checkpoint to resume from");
  checkpoint.add("exclude_from_loading", &S::exclude_from_loading, {})
      .later()
      .choices({"model", "optimizer", "lr_scheduler", "dataloader", "train_state"})
      .help("states that are not loaded");
  checkpoint.add("initial_load_path", &S::initial_load_path, std::nullopt)
      .later()
      .not_empty()
      .help("checkpoint to begin from when the run has none of its own");
  checkpoint.add("initial_load_model_only", &S::initial_load_model_only, true)
      .later()
      .help("load only the model from it");
  checkpoint.add("initial_load_in_hf", &S::initial_load_in_hf, false)
      .later()
      .help("it is in Hugging Face's format (without a path: model.hf_assets_path)");
  checkpoint.add("initial_load_in_hf_quantized", &S::initial_load_in_hf_quantized, false)
      .later()
      .help("its weights are quantised in blocks (float8 with factors beside them)");
}

}  // namespace

void describe_checkpoint(Schema& schema) {
  using S = CheckpointSection;
  Condition on{"checkpoint.enable = true", [](const JobConfig& config) { return config.checkpoint.enable; }};
  Section checkpoint(
      schema, "checkpoint", "Saving and resuming a run.", [](auto& config) -> auto& { return config.checkpoint; });
  checkpoint.add("enable", &S::enable, false).later().help("save checkpoints, and resume from them");
  describe_saving(checkpoint);
  describe_loading(checkpoint);
  for (Option& option : schema.section_options("checkpoint")) {
    if (option.name() != "enable" && option.idle.empty() && !option.condition) option.only_when(on);
  }
  checkpoint.accept("enable_ft_dataloader_checkpoints", ValueType::boolean, Value(true))
      .later()
      .no_effect("it belongs to TorchFT")
      .help("save the data position of every replica group");
  describe_fault_tolerance(schema);
}

}  // namespace titan::detail
