// What a config of December 2024 means in today's options: how its generation is found, its spellings and their
// conversions (and the later names of torchtitan and its guide), the one default that follows from other options, and
// the formulas that no option chooses.

#include <fmt/format.h>
#include <algorithm>

#include "given.h"
#include "titan/config/section.h"
#include "titan/config/settings.h"
#include "titan/schedule/pipeline_plan.h"

namespace titan {

std::string december_line(const LoadedConfig& loaded) {
  if (loaded.config.lr_scheduler.formula != RateFormula::december_2024) return {};
  return fmt::format("Defaults and formulas of December 2024 (job.generation 2024): {}", loaded.generation_reason);
}

namespace detail {

namespace {

struct Renaming {
  const char* key;
  const char* target;
  Era era;
};

constexpr Renaming kRenamings[] = {
    {"job.print_args", "job.print_config", Era::early},
    {"memory_estimation.enabled", "memory_estimation.enable", Era::early},
    {"training.batch_size", "training.local_batch_size", Era::early},
    {"training.seed", "debug.seed", Era::early},
    {"training.deterministic", "debug.deterministic", Era::early},
    {"training.compile", "compile.enable", Era::early},
    {"training.warmup_steps", "lr_scheduler.warmup_steps", Era::early},
    {"lr_scheduler.lr_min", "lr_scheduler.min_lr_factor", Era::later},
    {"training.data_parallel_replicate_degree", "parallelism.data_parallel_replicate_degree", Era::early},
    {"training.data_parallel_shard_degree", "parallelism.data_parallel_shard_degree", Era::early},
    {"training.tensor_parallel_degree", "parallelism.tensor_parallel_degree", Era::early},
    {"training.disable_loss_parallel", "parallelism.disable_loss_parallel", Era::early},
    {"training.enable_async_tensor_parallel", "parallelism.enable_async_tensor_parallel", Era::own},
    {"experimental.enable_async_tensor_parallel", "parallelism.enable_async_tensor_parallel", Era::early},
    {"experimental.context_parallel_degree", "parallelism.context_parallel_degree", Era::early},
    {"experimental.context_parallel_rotate_method", "parallelism.context_parallel_rotate_method", Era::early},
    {"experimental.pipeline_parallel_degree", "parallelism.pipeline_parallel_degree", Era::early},
    {"experimental.pipeline_parallel_split_points", "parallelism.pipeline_parallel_split_points", Era::early},
    {"experimental.pipeline_parallel_schedule", "parallelism.pipeline_parallel_schedule", Era::early},
    {"experimental.pipeline_parallel_schedule_csv", "parallelism.pipeline_parallel_schedule_csv", Era::early},
    {"checkpoint.enable_checkpoint", "checkpoint.enable", Era::early},
    {"checkpoint.model_weights_only", "checkpoint.last_save_model_only", Era::early},
    {"checkpoint.last_save_model_weights_only", "checkpoint.last_save_model_only", Era::later},
    {"float8.enable_fsdp_float8_all_gather", "quantize.linear.float8.enable_fsdp_float8_all_gather", Era::early},
    {"float8.precompute_float8_dynamic_scale_for_fsdp",
     "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp", Era::early},
    {"float8.recipe_name", "quantize.linear.float8.recipe_name", Era::later},
    {"float8.filter_fqns", "quantize.linear.float8.filter_fqns", Era::later},
    {"float8.force_recompute_fp8_weight_in_bwd", "quantize.linear.float8.force_recompute_fp8_weight_in_bwd",
     Era::always},
    {"float8.emulate", "quantize.linear.float8.emulate", Era::later},
    {"mx.recipe_name", "quantize.linear.mx.recipe_name", Era::later},
    {"mx.filter_fqns", "quantize.linear.mx.filter_fqns", Era::later},
};

Alias inverted(const char* key, const char* target, Era era) {
  Alias alias{key, target, era, "inverted", ValueType::boolean};
  alias.convert = [target = std::string(target)](const Value& value, const Settings&) {
    return Conversion{{{target, Value(!std::get<bool>(value))}}, {}, {}};
  };
  return alias;
}

Conversion convert_fused(const Value& value, const Settings&) {
  return {{{"optimizer.implementation", Value(std::get<bool>(value) ? "fused" : "foreach")}}, {}, {}};
}

/// Converts a number of microbatches to their size. Both generations split along the batch, so the number must divide
/// it.
Conversion convert_microbatches(const Value& value, const Settings& settings) {
  auto count = std::get<int64_t>(value);
  auto batch = settings.get<int64_t>("training.local_batch_size");
  if (count < 1) return {{}, fmt::format("a count of {} microbatches is out of range", count), "use at least 1"};
  if (batch % count != 0) {
    return {{},
            fmt::format("{} microbatches do not divide training.local_batch_size = {}", count, batch),
            "change one, or set parallelism.pipeline_parallel_microbatch_size"};
  }
  return {{{"parallelism.pipeline_parallel_microbatch_size", Value(batch / count)}}, {}, {}};
}

Conversion convert_interval_type(const Value& value, const Settings& settings) {
  if (std::get<std::string>(value) != "seconds") return {};
  return {{{"checkpoint.interval_seconds", settings.value("checkpoint.interval")}}, {}, {}};
}

/// December 2024 converted every linear layer but `output`; the current converter needs a filter for that.
Conversion convert_float8(const Value& value, const Settings& settings) {
  if (!std::get<bool>(value)) return {};
  auto converters = settings.get<std::vector<std::string>>("model.converters");
  const std::string float8 = "quantize.linear.float8";
  if (std::find(converters.begin(), converters.end(), float8) == converters.end()) converters.push_back(float8);
  Conversion result{{{"model.converters", Value(converters), true}}, {}, {}};
  if (!settings.is_set("quantize.linear.float8.filter_fqns")) {
    result.assignments.push_back(
        {"quantize.linear.float8.filter_fqns", Value(std::vector<std::string>{"output"}), true});
  }
  return result;
}

void describe_conversions(Schema& schema) {
  schema.add_alias(inverted("metrics.rank_0_only", "metrics.save_for_all_ranks", Era::early));
  schema.add_alias(inverted("training.enable_loss_parallel", "parallelism.disable_loss_parallel", Era::own));
  schema.add_alias({"optimizer.fused",
                    "optimizer.implementation",
                    Era::early,
                    "true: fused, false: foreach",
                    ValueType::boolean,
                    {},
                    convert_fused});
  const char* count = "local_batch_size / count";
  const char* size = "parallelism.pipeline_parallel_microbatch_size";
  schema.add_alias({"experimental.pipeline_parallel_microbatches",
                    size,
                    Era::early,
                    count,
                    ValueType::integer,
                    {},
                    convert_microbatches});
  schema.add_alias({"parallelism.pipeline_parallel_microbatches",
                    size,
                    Era::later,
                    count,
                    ValueType::integer,
                    {},
                    convert_microbatches});
  schema.add_alias({"checkpoint.interval_type",
                    "checkpoint.interval_seconds",
                    Era::early,
                    "seconds: checkpoint.interval counts seconds",
                    ValueType::text,
                    {"steps", "seconds"},
                    convert_interval_type});
  schema.add_alias({"float8.enable_float8_linear",
                    "model.converters",
                    Era::early,
                    "true: adds quantize.linear.float8 and leaves output alone",
                    ValueType::boolean,
                    {},
                    convert_float8});
}

}  // namespace

void describe_aliases(Schema& schema) {
  for (const Renaming& renaming : kRenamings) {
    schema.add_alias({renaming.key, renaming.target, renaming.era, {}, {}, {}, {}});
  }
  describe_conversions(schema);
}

GenerationChoice decide_generation(const std::vector<Given>& given, std::vector<Problem>& problems) {
  std::string asked = "auto";
  std::string asked_where;
  const Given* early = nullptr;
  const Given* early_that_stayed = nullptr;
  const Given* late = nullptr;
  for (const Given& one : given) {
    if (one.option->key == "job.generation") {
      asked = std::get<std::string>(one.value);
      asked_where = one.key_place.to_string();
    }
    if (one.level != Level::file) continue;
    // Only spellings that are gone prove a file of December 2024: one that is still an option may be beside later ones.
    bool stayed = one.alias == nullptr && one.option->write;
    if (one.era() == Era::early && stayed && early_that_stayed == nullptr) early_that_stayed = &one;
    if (one.era() == Era::early && !stayed && early == nullptr) early = &one;
    if (one.era() == Era::later && late == nullptr) late = &one;
  }
  if (asked == "2024") return {Generation::december_2024, "asked for at " + asked_where};
  if (asked == "2026") return {Generation::last_2026, "asked for at " + asked_where};
  if (early != nullptr && late != nullptr) {
    const Given& second = early->key_place.line > late->key_place.line ? *early : *late;
    const Given& first = &second == early ? *late : *early;
    auto era = [](const Given& one) { return one.era() == Era::early ? "December 2024" : "later"; };
    problems.push_back({second.key_place, "job.generation",
                        fmt::format("{} is a {} spelling, but {} at {} is a {} one", second.spelling(), era(second),
                                    first.spelling(), first.key_place.to_string(), era(first)),
                        "spell the file one way, or set job.generation = \"2024\" or \"2026\"", Severity::error});
    return {Generation::last_2026, "the file mixes spellings"};
  }
  auto decided_by = [](const Given& one, const char* what) {
    return fmt::format("{} at {} is {}", one.spelling(), one.key_place.to_string(), what);
  };
  const Given* december = early != nullptr ? early : late == nullptr ? early_that_stayed : nullptr;
  if (december != nullptr)
    return {Generation::december_2024, decided_by(*december, "a spelling that only December 2024 knew")};
  if (late != nullptr) return {Generation::last_2026, decided_by(*late, "a later spelling than December 2024's")};
  return {Generation::last_2026, "the file has no spelling that only December 2024 knew"};
}

void derive_december_microbatches(Settings& settings) {
  const std::string key = "parallelism.pipeline_parallel_microbatch_size";
  auto degree = settings.get<int64_t>("parallelism.pipeline_parallel_degree");
  if (settings.generation() != Generation::december_2024 || degree < 2 || settings.is_set(key)) return;
  const auto& schedule = settings.get<std::string>("parallelism.pipeline_parallel_schedule");
  bool one_stage_per_rank = schedule == "1F1B" || schedule == "GPipe" || schedule == "PipelineScheduleSingle";
  auto points = std::ssize(settings.get<std::vector<std::string>>("parallelism.pipeline_parallel_split_points"));
  int64_t stages = points > 0 ? points + 1 : one_stage_per_rank ? degree : 2 * degree;
  auto batch = settings.get<int64_t>("training.local_batch_size");
  if (batch % stages == 0) {
    settings.set(key, Value(batch / stages), Level::default_value, {}, {});
  }
}

void set_generation(JobConfig& config, Generation generation) {
  const bool december = generation == Generation::december_2024;
  config.job.generation = december ? "2024" : "2026";
  config.lr_scheduler.formula = december ? RateFormula::december_2024 : RateFormula::warm_up_stable_decay;
  config.parallelism.split_rule = december ? SplitRule::december_2024 : SplitRule::balanced;
}

}  // namespace detail
}  // namespace titan
