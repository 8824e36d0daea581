#include "titan/config/schema.h"

#include <gtest/gtest.h>

#include <set>

#include "support.h"

namespace titan {
namespace {

// Every option of torchtitan's December 2024 table, in its spelling.
const char* const kDecemberKeys[] = {"job.config_file",
                                     "job.dump_folder",
                                     "job.description",
                                     "job.use_for_integration_test",
                                     "job.print_args",
                                     "profiling.enable_profiling",
                                     "profiling.save_traces_folder",
                                     "profiling.profile_freq",
                                     "profiling.enable_memory_snapshot",
                                     "profiling.save_memory_snapshot_folder",
                                     "metrics.log_freq",
                                     "metrics.enable_tensorboard",
                                     "metrics.disable_color_printing",
                                     "metrics.save_tb_folder",
                                     "metrics.rank_0_only",
                                     "metrics.enable_wandb",
                                     "model.name",
                                     "model.flavor",
                                     "model.norm_type",
                                     "model.tokenizer_path",
                                     "optimizer.name",
                                     "optimizer.lr",
                                     "optimizer.fused",
                                     "optimizer.early_step_in_backward",
                                     "training.dataset",
                                     "training.dataset_path",
                                     "training.batch_size",
                                     "training.seq_len",
                                     "training.warmup_steps",
                                     "training.max_norm",
                                     "training.steps",
                                     "training.data_parallel_replicate_degree",
                                     "training.data_parallel_shard_degree",
                                     "training.enable_cpu_offload",
                                     "training.tensor_parallel_degree",
                                     "training.disable_loss_parallel",
                                     "training.mixed_precision_param",
                                     "training.mixed_precision_reduce",
                                     "training.compile",
                                     "training.gc_freq",
                                     "training.seed",
                                     "training.deterministic",
                                     "experimental.enable_async_tensor_parallel",
                                     "experimental.pipeline_parallel_degree",
                                     "experimental.pipeline_parallel_split_points",
                                     "experimental.pipeline_parallel_schedule",
                                     "experimental.pipeline_parallel_schedule_csv",
                                     "experimental.pipeline_parallel_microbatches",
                                     "experimental.enable_compiled_autograd",
                                     "experimental.context_parallel_degree",
                                     "experimental.context_parallel_rotate_method",
                                     "checkpoint.enable_checkpoint",
                                     "checkpoint.folder",
                                     "checkpoint.interval_type",
                                     "checkpoint.interval",
                                     "checkpoint.model_weights_only",
                                     "checkpoint.export_dtype",
                                     "checkpoint.create_seed_checkpoint",
                                     "checkpoint.async_mode",
                                     "checkpoint.keep_latest_k",
                                     "checkpoint.load_step",
                                     "activation_checkpoint.mode",
                                     "activation_checkpoint.selective_ac_option",
                                     "float8.enable_float8_linear",
                                     "float8.enable_fsdp_float8_all_gather",
                                     "float8.precompute_float8_dynamic_scale_for_fsdp",
                                     "float8.scaling_type_input",
                                     "float8.scaling_type_weight",
                                     "float8.scaling_type_grad_output",
                                     "comm.init_timeout_seconds",
                                     "comm.train_timeout_seconds",
                                     "comm.trace_buf_size",
                                     "memory_estimation.enabled",
                                     "memory_estimation.disable_fake_mode"};

// What the last TOML release added or renamed.
const char* const kLaterKeys[] = {"job.print_config",
                                  "job.save_config_file",
                                  "job.custom_config_module",
                                  "profiling.profiler_active",
                                  "profiling.profiler_warmup",
                                  "metrics.save_for_all_ranks",
                                  "model.hf_assets_path",
                                  "model.converters",
                                  "model.print_after_conversion",
                                  "optimizer.beta1",
                                  "optimizer.beta2",
                                  "optimizer.eps",
                                  "optimizer.weight_decay",
                                  "optimizer.implementation",
                                  "lr_scheduler.warmup_steps",
                                  "lr_scheduler.total_steps",
                                  "lr_scheduler.decay_ratio",
                                  "lr_scheduler.decay_type",
                                  "lr_scheduler.min_lr_factor",
                                  "training.local_batch_size",
                                  "training.global_batch_size",
                                  "training.dtype",
                                  "training.gc_debug",
                                  "training.dataloader.num_workers",
                                  "training.dataloader.persistent_workers",
                                  "training.dataloader.pin_memory",
                                  "training.dataloader.prefetch_factor",
                                  "parallelism.data_parallel_replicate_degree",
                                  "parallelism.data_parallel_shard_degree",
                                  "parallelism.fsdp_reshard_after_forward",
                                  "parallelism.tensor_parallel_degree",
                                  "parallelism.disable_loss_parallel",
                                  "parallelism.enable_async_tensor_parallel",
                                  "parallelism.pipeline_parallel_degree",
                                  "parallelism.module_fqns_per_model_part",
                                  "parallelism.pipeline_parallel_first_stage_less_layers",
                                  "parallelism.pipeline_parallel_last_stage_less_layers",
                                  "parallelism.pipeline_parallel_layers_per_stage",
                                  "parallelism.pipeline_parallel_schedule",
                                  "parallelism.pipeline_parallel_schedule_csv",
                                  "parallelism.pipeline_parallel_microbatch_size",
                                  "parallelism.pipeline_parallel_expert_parallel_overlap",
                                  "parallelism.context_parallel_degree",
                                  "parallelism.context_parallel_rotate_method",
                                  "parallelism.context_parallel_load_balancer",
                                  "parallelism.expert_parallel_degree",
                                  "parallelism.expert_tensor_parallel_degree",
                                  "parallelism.expert_parallel_comm_backend",
                                  "checkpoint.enable",
                                  "checkpoint.initial_load_path",
                                  "checkpoint.initial_load_model_only",
                                  "checkpoint.initial_load_in_hf",
                                  "checkpoint.initial_load_in_hf_quantized",
                                  "checkpoint.last_save_model_only",
                                  "checkpoint.last_save_in_hf",
                                  "checkpoint.exclude_from_loading",
                                  "checkpoint.enable_first_step_checkpoint",
                                  "checkpoint.load_only",
                                  "checkpoint.enable_ft_dataloader_checkpoints",
                                  "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
                                  "activation_checkpoint.early_stop",
                                  "activation_checkpoint.debug",
                                  "activation_checkpoint.memory_budget",
                                  "activation_checkpoint.visualize_memory_budget_pareto",
                                  "activation_checkpoint.preserve_rng_state",
                                  "activation_checkpoint.determinism_check",
                                  "compile.enable",
                                  "compile.components",
                                  "compile.backend",
                                  "quantize.linear.float8.enable_fsdp_float8_all_gather",
                                  "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp",
                                  "quantize.linear.float8.emulate",
                                  "quantize.linear.float8.recipe_name",
                                  "quantize.linear.float8.filter_fqns",
                                  "quantize.linear.mx.recipe_name",
                                  "quantize.linear.mx.mxfp8_dim1_cast_kernel_choice",
                                  "quantize.linear.mx.filter_fqns",
                                  "quantize.grouped_mm.float8.fqns",
                                  "quantize.grouped_mm.mx.recipe_name",
                                  "quantize.grouped_mm.mx.fqns",
                                  "comm.save_traces_folder",
                                  "comm.save_traces_file_prefix",
                                  "comm.mode",
                                  "memory_estimation.enable",
                                  "fault_tolerance.enable",
                                  "fault_tolerance.process_group",
                                  "fault_tolerance.process_group_timeout_ms",
                                  "fault_tolerance.replica_id",
                                  "fault_tolerance.group_size",
                                  "fault_tolerance.min_replica_size",
                                  "fault_tolerance.semi_sync_method",
                                  "experimental.custom_import",
                                  "validation.enable",
                                  "validation.dataset",
                                  "validation.dataset_path",
                                  "validation.local_batch_size",
                                  "validation.seq_len",
                                  "validation.freq",
                                  "validation.steps",
                                  "validation.dataloader.num_workers",
                                  "debug.seed",
                                  "debug.deterministic",
                                  "debug.deterministic_warn_only",
                                  "debug.moe_force_load_balance"};

Era era_of(const Schema& schema, const std::string& key) {
  const Alias* alias = schema.find_alias(key);
  return alias != nullptr ? alias->era : schema.find(key)->era;
}

TEST(Schema, an_option_that_follows_another_has_its_value_until_it_is_given_its_own) {
  EXPECT_EQ(load("[training]\nseq_len = 64").config.validation.seq_len, 64);
  EXPECT_EQ(load("[training]\nseq_len = 64\n[validation]\nseq_len = 32").config.validation.seq_len, 32);
}

TEST(Schema, knows_every_option_of_december_2024_and_calls_none_of_them_later) {
  Schema schema;
  for (const char* key : kDecemberKeys) {
    ASSERT_TRUE(schema.find(key) != nullptr || schema.find_alias(key) != nullptr) << key;
    EXPECT_TRUE(era_of(schema, key) == Era::always || era_of(schema, key) == Era::early) << key;
  }
}

TEST(Schema, knows_every_option_of_the_last_toml_release_as_a_later_spelling) {
  Schema schema;
  for (const char* key : kLaterKeys) {
    ASSERT_NE(schema.find(key), nullptr) << key;
    EXPECT_EQ(era_of(schema, key), Era::later) << key;
  }
}

TEST(Schema, an_option_that_both_releases_know_is_marked_so) {
  Schema schema;
  std::set<std::string> december(std::begin(kDecemberKeys), std::end(kDecemberKeys));
  std::set<std::string> later(std::begin(kLaterKeys), std::end(kLaterKeys));
  for (const Option& option : schema.options()) {
    bool upstream = december.count(option.key) > 0 || later.count(option.key) > 0;
    EXPECT_TRUE(option.era != Era::always || december.count(option.key) > 0) << option.key;
    EXPECT_TRUE(option.era != Era::own || !upstream) << option.key;
  }
}

TEST(Schema, every_option_is_explained_and_lies_in_a_described_section) {
  Schema schema;
  std::set<std::string> sections;
  for (const SectionInfo& section : schema.sections()) {
    EXPECT_FALSE(section.description.empty()) << section.name;
    EXPECT_TRUE(sections.insert(section.name).second) << section.name;
  }
  for (const Option& option : schema.options()) {
    EXPECT_GT(option.description.size(), 7u) << option.key;
    EXPECT_TRUE(sections.count(option.section)) << option.key;
  }
}

TEST(Schema, every_default_has_its_options_type_and_is_allowed) {
  Schema schema;
  for (const Option& option : schema.options()) {
    for (const Value& value : {option.default_2024, option.default_2026}) {
      bool none = std::holds_alternative<std::monostate>(value);
      EXPECT_TRUE(none ? option.optional : option.accept(value) == value) << option.key;
      EXPECT_FALSE(option.violation(value).has_value()) << option.key;
      EXPECT_TRUE(option.is_harmless(value)) << option.key;
    }
  }
}

TEST(Schema, a_value_written_into_the_typed_config_is_read_back_from_the_same_option_and_no_other) {
  Schema schema;
  for (Generation generation : {Generation::december_2024, Generation::last_2026}) {
    JobConfig config = default_config(schema, generation);
    for (const Option& option : schema.options()) {
      if (!option.read || option.key == "job.generation") continue;
      EXPECT_EQ(option.read(config), option.default_for(generation)) << option.key;
    }
  }
  for (const Option& changed : schema.options()) {
    if (!changed.write || changed.type != ValueType::boolean) continue;
    JobConfig config = default_config(schema);
    changed.write(config, Value(!std::get<bool>(changed.default_2026)));
    for (const Option& option : schema.options()) {
      if (!option.read || option.key == "job.generation") continue;
      EXPECT_EQ(option.read(config) == option.default_2026, option.key != changed.key) << option.key << changed.key;
    }
  }
}

TEST(Schema, documented_defaults_of_both_generations_hold) {
  JobConfig december = default_config(Generation::december_2024);
  JobConfig last = default_config(Generation::last_2026);
  EXPECT_EQ(december.checkpoint.keep_latest_k, 0);
  EXPECT_EQ(last.checkpoint.keep_latest_k, 10);
  EXPECT_FALSE(december.checkpoint.last_save_model_only);
  EXPECT_TRUE(last.checkpoint.last_save_model_only);
  EXPECT_EQ(december.quantize.linear.float8.filter_fqns, std::vector<std::string>{"output"});
  EXPECT_TRUE(last.quantize.linear.float8.filter_fqns.empty());
  EXPECT_EQ(december.optimizer.implementation, OptimizerImplementation::foreach);
  EXPECT_EQ(last.optimizer.implementation, OptimizerImplementation::fused);
  EXPECT_EQ(december.job.dump_folder, "./torchtitan/outputs");
  EXPECT_EQ(last.job.dump_folder, "./outputs");
  EXPECT_EQ(last.optimizer.eps, 1e-8);
  EXPECT_EQ(last.training.global_batch_size, -1);
  EXPECT_EQ(last.lr_scheduler.warmup_steps, 200);
}

TEST(Schema, the_tokenizer_lies_in_the_assets_folder_unless_it_is_named) {
  JobConfig config = default_config();
  EXPECT_EQ(tokenizer_location(config), config.model.hf_assets_path);
  config.model.tokenizer_path = "tokenizer.model";
  EXPECT_EQ(tokenizer_location(config), "tokenizer.model");
}

}  // namespace
}  // namespace titan
