#include <gtest/gtest.h>

#include "support.h"

namespace titan {
namespace {

/// A value of the type that the option takes and that differs from its default.
std::string other_value(const Option& option) {
  if (!option.choice_list().empty()) {
    const std::string& last = option.choice_list().back();
    return option.type == ValueType::text_list ? "[\"" + last + "\"]" : "\"" + last + "\"";
  }
  switch (option.type) {
    case ValueType::boolean:
      return to_toml(Value(option.default_2024 != Value(true)));
    case ValueType::integer:
      return "2";
    case ValueType::number:
      return "0.25";
    case ValueType::text_list:
      return "[\"layers.2\"]";
    default:
      return "\"layers.2\"";
  }
}

TEST(Alias, every_mere_renaming_sets_todays_option_and_says_its_name) {
  Schema schema;
  int tested = 0;
  for (const Alias& alias : schema.aliases()) {
    const Option& target = *schema.find(alias.target);
    if (alias.convert || !target.read) continue;
    size_t dot = alias.key.rfind('.');
    std::string value = other_value(target);
    LoadedConfig loaded = load("[" + alias.key.substr(0, dot) + "]\n" + alias.key.substr(dot + 1) + " = " + value);
    EXPECT_EQ(to_toml(target.read(loaded.config)), value) << alias.key;
    EXPECT_TRUE(contains(notes_of(loaded), "job.toml:2:1: " + alias.key + " is now " + alias.target)) << alias.key;
    ++tested;
  }
  EXPECT_GT(tested, 20);
}

TEST(Alias, every_former_spelling_works_on_the_command_line_too) {
  EXPECT_EQ(load_words({"--training.batch-size", "3"}).config.training.local_batch_size, 3);
  EXPECT_TRUE(load_words({"--training.compile"}).config.compile.enable);
  EXPECT_FALSE(load("[training]\ncompile = true", {"--training.no-compile"}).config.compile.enable);
  EXPECT_EQ(load_words({"--training.seed", "none"}).config.debug.seed, std::nullopt);
}

TEST(Alias, rank_0_only_is_inverted) {
  EXPECT_TRUE(load("[metrics]\nrank_0_only = false").config.metrics.save_for_all_ranks);
  EXPECT_FALSE(load("[metrics]\nrank_0_only = true").config.metrics.save_for_all_ranks);
  EXPECT_TRUE(load_words({"--metrics.no-rank_0_only"}).config.metrics.save_for_all_ranks);
}

TEST(Alias, enable_loss_parallel_is_inverted) {
  EXPECT_TRUE(load("[training]\nenable_loss_parallel = false").config.parallelism.disable_loss_parallel);
  EXPECT_FALSE(load("[training]\nenable_loss_parallel = true").config.parallelism.disable_loss_parallel);
}

TEST(Alias, fused_chooses_the_implementation) {
  EXPECT_EQ(load("[optimizer]\nfused = true").config.optimizer.implementation, OptimizerImplementation::fused);
  EXPECT_EQ(load("[optimizer]\nfused = false").config.optimizer.implementation, OptimizerImplementation::foreach);
  EXPECT_EQ(
      load("", {"--optimizer.name", "Adam", "--optimizer.fused", "--optimizer.name", "AdamW", "--optimizer.fused"})
          .config.optimizer.name,
      OptimizerKind::adamw);
}

TEST(Alias, a_count_of_microbatches_becomes_their_size) {
  const char* text =
      "[training]\nbatch_size = 8\n[experimental]\npipeline_parallel_degree = 2\npipeline_parallel_microbatches = 4";
  EXPECT_EQ(load(text).config.parallelism.pipeline_parallel_microbatch_size, 2);
  EXPECT_EQ(load(text, {"--training.batch_size", "16"}).config.parallelism.pipeline_parallel_microbatch_size, 4);
  EXPECT_EQ(load("[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_microbatches = 8")
                .config.parallelism.pipeline_parallel_microbatch_size,
            1);
}

TEST(Alias, an_interval_in_seconds_becomes_interval_seconds) {
  JobConfig config = load("[checkpoint]\ninterval_type = \"seconds\"\ninterval = 600").config;
  EXPECT_EQ(config.checkpoint.interval_seconds, 600);
  EXPECT_EQ(load("[checkpoint]\ninterval_type = \"steps\"\ninterval = 600").config.checkpoint.interval_seconds, 0);
}

TEST(Alias, enable_float8_linear_becomes_a_converter_with_a_filter) {
  JobConfig config = load("[float8]\nenable_float8_linear = true").config;
  EXPECT_EQ(config.model.converters, std::vector<std::string>{"quantize.linear.float8"});
  EXPECT_EQ(config.quantize.linear.float8.filter_fqns, std::vector<std::string>{"output"});
  config = load("[model]\nflavor = \"8B\"", {"--float8.enable_float8_linear"}).config;
  EXPECT_EQ(config.quantize.linear.float8.filter_fqns, std::vector<std::string>{"output"});
  config =
      load("[model]\nconverters = [\"float8\"]", {"--float8.enable_float8_linear", "--float8.filter_fqns=wo"}).config;
  EXPECT_EQ(config.model.converters.size(), 1u);
  EXPECT_EQ(config.quantize.linear.float8.filter_fqns, std::vector<std::string>{"wo"});
  EXPECT_TRUE(load("[float8]\nenable_float8_linear = false").config.model.converters.empty());
}

TEST(Alias, norm_type_is_known_in_any_case) {
  EXPECT_EQ(load("[model]\nnorm_type = \"fused_rmsnorm\"").config.model.norm_type, NormType::fused_rmsnorm);
  EXPECT_EQ(load("[model]\nnorm_type = \"NP_LayerNorm\"").config.model.norm_type, NormType::np_layernorm);
  EXPECT_TRUE(contains(said(load("[model]\nnorm_type = \"batchnorm\"")), "np_layernorm"));
}

TEST(Alias, training_compile_switches_compile_on) {
  EXPECT_TRUE(load("[training]\ncompile = true").config.compile.enable);
  EXPECT_FALSE(load("[training]\ncompile = false").config.compile.enable);
}

TEST(Alias, schedules_are_known_in_any_case) {
  EXPECT_EQ(load("[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = \"interleaved1f1b\"")
                .config.parallelism.pipeline_parallel_schedule,
            "Interleaved1F1B");
}

TEST(Alias, the_command_line_overrides_a_former_spelling_of_the_file) {
  EXPECT_EQ(
      load("[optimizer]\nfused = true", {"--optimizer.implementation", "for-loop"}).config.optimizer.implementation,
      OptimizerImplementation::for_loop);
  EXPECT_EQ(load("[training]\nbatch_size = 2", {"--training.local_batch_size", "4"}).config.training.local_batch_size,
            4);
}

TEST(Alias, of_a_former_and_a_present_spelling_on_the_command_line_the_last_wins) {
  EXPECT_EQ(load_words({"--optimizer.fused", "--optimizer.implementation", "for-loop"}).config.optimizer.implementation,
            OptimizerImplementation::for_loop);
  EXPECT_EQ(load_words({"--optimizer.implementation", "for-loop", "--optimizer.fused"}).config.optimizer.implementation,
            OptimizerImplementation::fused);
}

TEST(Alias, one_float8_recipe_under_two_names_or_two_under_one_are_no_contradiction) {
  const auto problems_of = [](const std::string& first, const std::string& second) {
    return said(load_words({"--model.converters=quantize.linear.float8", first, second}));
  };
  const std::string old_name = "--float8.recipe_name=", new_name = "--quantize.linear.float8.recipe_name=";
  EXPECT_EQ(problems_of(old_name + "rowwise", new_name + "rowwise"), "");
  EXPECT_EQ(problems_of(new_name + "rowwise", old_name + "rowwise"), "");
  for (const std::string& name : {old_name, new_name}) {
    EXPECT_EQ(problems_of(name + "rowwise", name + "tensorwise"), "") << "an override";
  }
}

}  // namespace
}  // namespace titan
