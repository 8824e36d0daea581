// Sections checkpoint and fault_tolerance.
#include "section.h"

namespace titan::detail {
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
  accept("min_replica_size", ValueType::integer, Value(int64_t{1}), "groups needed to go on");
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
      .help("write while training goes on");
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
      .help("save step 0 from one process and end");
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
      .help("take only the model from it");
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
      schema, "checkpoint", "Saving a run and going on from what was saved.",
      [](auto& config) -> auto& { return config.checkpoint; });
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
