// Sections job, profiling and metrics.
#include "section.h"

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
      .help("no colours (there are none anyway when the output is no terminal)");
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
  metrics.add("quiet", &S::quiet, false).own().help("only warnings and errors on the console; --quiet says the same");
}

}  // namespace

void describe_job(Schema& schema) {
  describe_job_section(schema);
  describe_profiling(schema);
  describe_metrics(schema);
}

}  // namespace titan::detail
