#include <gtest/gtest.h>

#include "support.h"
#include "titan/base/filesystem.h"
#include "titan/config/dump.h"

namespace titan {
namespace {

LoadedConfig load_file(const std::string& name) { return load_words({(source_folder() / "configs" / name).string()}); }

TEST(ShippedConfigs, every_one_loads_without_a_problem) {
  std::vector<std::filesystem::path> files = shipped_configs();
  EXPECT_GE(files.size(), 24u);
  for (const auto& file : files) EXPECT_EQ(said(load_words({file.string()})), "") << file;
}

TEST(ShippedConfigs, every_one_begins_by_saying_what_hardware_it_is_for_and_what_to_expect) {
  for (const auto& file : shipped_configs()) EXPECT_EQ(read_file(file).substr(0, 2), "# ") << file;
  for (const auto& entry : std::filesystem::directory_iterator(source_folder() / "configs")) {
    if (entry.path().extension() != ".toml") continue;
    EXPECT_TRUE(contains(read_file(entry.path()), "# Hardware: ")) << entry.path();
    EXPECT_TRUE(contains(read_file(entry.path()), "# Expect: ")) << entry.path();
  }
}

TEST(ShippedConfigs, our_own_use_todays_spelling_and_nothing_without_effect) {
  for (const auto& entry : std::filesystem::directory_iterator(source_folder() / "configs")) {
    if (entry.path().extension() != ".toml") continue;
    LoadedConfig loaded = load_words({entry.path().string()});
    EXPECT_EQ(notes_of(loaded), "") << entry.path();
    EXPECT_EQ(loaded.config.job.generation, "2026") << entry.path();
  }
}

TEST(ShippedConfigs, upstreams_are_recognised_by_their_generation) {
  for (const auto& file : shipped_configs()) {
    std::string folder = file.parent_path().filename();
    if (!folder.starts_with("torchtitan-")) continue;
    EXPECT_EQ("torchtitan-" + load_words({file.string()}).config.job.generation, folder) << file;
  }
}

struct PresetRow {
  const char* name;
  double lr;
  int64_t batch, seq_len, warmup, steps, tensor_parallel;
  const char* recompute;
  bool compile;
};

void expect_row(const std::string& folder, const PresetRow& row) {
  JobConfig config = load_file(folder + "/" + row.name + ".toml").config;
  SCOPED_TRACE(folder + "/" + row.name);
  EXPECT_EQ(config.optimizer.lr, row.lr);
  EXPECT_EQ(config.training.local_batch_size, row.batch);
  EXPECT_EQ(config.training.seq_len, row.seq_len);
  EXPECT_EQ(config.lr_scheduler.warmup_steps, row.warmup);
  EXPECT_EQ(config.training.steps, row.steps);
  EXPECT_EQ(config.parallelism.tensor_parallel_degree, row.tensor_parallel);
  EXPECT_EQ(config.parallelism.data_parallel_shard_degree, -1);
  EXPECT_EQ(config.compile.enable, row.compile);
  EXPECT_EQ(config.optimizer.name, OptimizerKind::adamw);
  EXPECT_EQ(config.training.max_norm, 1.0);
  EXPECT_EQ(config.job.dump_folder, "./outputs");
  EXPECT_FALSE(config.checkpoint.last_save_model_only);
  const ActivationCheckpointSection& recompute = config.activation_checkpoint;
  std::string policy = recompute.mode == "selective" ? recompute.selective_ac_option : recompute.mode;
  EXPECT_EQ(policy, row.recompute);
}

TEST(ShippedConfigs, upstreams_values_are_those_of_its_table) {
  const PresetRow shared[] = {{"debug_model", 8e-4, 8, 2048, 2, 10, 1, "2", false},
                              {"llama3_8b", 3e-4, 1, 8192, 200, 1000, 1, "op", false},
                              {"llama3_70b", 1.5e-4, 8, 8192, 200, 1000, 8, "full", false},
                              {"llama3_405b", 8e-5, 2, 8192, 600, 3000, 8, "full", true}};
  for (const PresetRow& row : shared) {
    expect_row("torchtitan-2024", row);
    expect_row("torchtitan-2026", row);
  }
  const PresetRow llama2[] = {{"llama2_7b", 3e-4, 8, 2048, 200, 1000, 1, "op", false},
                              {"llama2_13b", 3e-4, 2, 4096, 200, 1000, 1, "op", false},
                              {"llama2_70b", 1.5e-4, 16, 4096, 200, 1000, 8, "full", false}};
  for (const PresetRow& row : llama2) expect_row("torchtitan-2024", row);
}

TEST(ShippedConfigs, upstreams_405b_presets_agree_on_float8_in_either_spelling) {
  for (const char* folder : {"torchtitan-2024", "torchtitan-2026"}) {
    JobConfig config = load_file(std::string(folder) + "/llama3_405b.toml").config;
    EXPECT_EQ(config.model.converters, std::vector<std::string>{"quantize.linear.float8"}) << folder;
    EXPECT_EQ(config.quantize.linear.float8.filter_fqns, std::vector<std::string>{"output"}) << folder;
    EXPECT_TRUE(config.quantize.linear.float8.enable_fsdp_float8_all_gather) << folder;
    EXPECT_TRUE(config.parallelism.enable_async_tensor_parallel) << folder;
  }
}

TEST(ShippedConfigs, upstreams_files_of_2026_scale_rotary_positions_as_its_llama3_did) {
  for (const char* size : {"8b", "70b", "405b"}) {
    const std::string file = std::string("/llama3_") + size + ".toml";
    EXPECT_EQ(load_file("torchtitan-2026" + file).config.model.rope_scaling, "llama3_1") << size;
    EXPECT_EQ(load_file("torchtitan-2024" + file).config.model.rope_scaling, "default") << size;
  }
  EXPECT_EQ(load_file("torchtitan-2026/debug_model.toml").config.model.rope_scaling, "default");
}

TEST(ShippedConfigs, the_guides_examples_keep_their_layouts) {
  JobConfig large = load_file("examples/llama3_405b_2048_gpus.toml").config;
  EXPECT_EQ(large.parallelism.data_parallel_replicate_degree, 4);
  EXPECT_EQ(large.parallelism.data_parallel_shard_degree, 8);
  EXPECT_EQ(large.parallelism.tensor_parallel_degree, 8);
  EXPECT_EQ(large.parallelism.pipeline_parallel_degree, 8);
  EXPECT_EQ(large.parallelism.pipeline_parallel_schedule, "Interleaved1F1B");
  EXPECT_FALSE(large.parallelism.disable_loss_parallel);
  EXPECT_TRUE(large.parallelism.enable_async_tensor_parallel);
  JobConfig middle = load_file("examples/llama3_70b_32_gpus.toml").config;
  EXPECT_EQ(middle.parallelism.data_parallel_replicate_degree * middle.parallelism.data_parallel_shard_degree *
                middle.parallelism.tensor_parallel_degree,
            32);
  JobConfig small = load_file("examples/llama3_8b_one_host.toml").config;
  EXPECT_EQ(small.training.local_batch_size, 4);
  EXPECT_EQ(small.model.converters.size(), 1u);
}

TEST(ShippedConfigs, what_is_shown_of_each_loads_back_to_the_same_config) {
  Schema schema;
  for (const auto& file : shipped_configs()) {
    LoadedConfig loaded = load_words({file.string()});
    LoadedConfig again = load_config_text(schema, dump_toml(schema, loaded.config, &loaded.origins), "shown.toml");
    EXPECT_EQ(said(again), "") << file;
    EXPECT_EQ(diff_configs(schema, {loaded.config}, {again.config}), "") << file;
  }
}

}  // namespace
}  // namespace titan
