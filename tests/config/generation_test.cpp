#include <gtest/gtest.h>

#include "support.h"
#include "titan/schedule/pipeline_plan.h"

namespace titan {
namespace {

Generation generation_for(const char* text, const std::vector<std::string>& overrides = {}) {
  return load(text, overrides).config.job.generation == "2024" ? Generation::december_2024 : Generation::last_2026;
}

TEST(Generation, a_december_spelling_selects_decembers_defaults) {
  LoadedConfig loaded = load("[training]\nbatch_size = 4");
  EXPECT_EQ(loaded.config.job.generation, "2024");
  EXPECT_EQ(loaded.config.checkpoint.keep_latest_k, 0);
  EXPECT_EQ(loaded.config.optimizer.implementation, OptimizerImplementation::foreach);
}

TEST(Generation, without_any_telling_spelling_it_is_the_last_one) {
  EXPECT_EQ(generation_for("[training]\nsteps = 4"), Generation::last_2026);
  EXPECT_EQ(generation_for("[compile]\nenable = true"), Generation::last_2026);
  EXPECT_EQ(load_words({}).config.job.generation, "2026");
}

TEST(Generation, can_be_set_and_then_holds_whatever_the_spelling) {
  EXPECT_EQ(generation_for("[training]\nsteps = 4\n[job]\ngeneration = \"2024\""), Generation::december_2024);
  EXPECT_EQ(generation_for("[training]\nbatch_size = 4", {"--job.generation", "2026"}), Generation::last_2026);
  LoadedConfig mixed = load("[training]\nbatch_size = 4\n[compile]\nenable = true\n[job]\ngeneration = 2024");
  EXPECT_EQ(said(mixed), "");
  EXPECT_EQ(mixed.config.job.generation, "2024");
}

TEST(Generation, is_decided_by_the_file_and_not_by_overrides) {
  EXPECT_EQ(generation_for("[training]\nbatch_size = 4", {"--compile.enable"}), Generation::december_2024);
  EXPECT_EQ(said_about("[compile]\nenable = false", {"--training.batch_size", "2"}), "");
}

TEST(Generation, options_of_this_program_say_nothing_about_it) {
  EXPECT_EQ(generation_for("[training]\nbatch_size = 4\n[data]\nbad_record = \"skip\""), Generation::december_2024);
  EXPECT_EQ(said_about("[training]\nbatch_size = 4\nloss_chunks = 4"), "");
}

TEST(Generation, the_choice_of_a_norm_says_december_alone_but_may_stand_beside_later_spellings) {
  EXPECT_EQ(generation_for("[model]\nnorm_type = \"layernorm\""), Generation::december_2024);
  LoadedConfig loaded = load("[model]\nnorm_type = \"layernorm\"\n[compile]\nenable = false");
  EXPECT_EQ(said(loaded), "");
  EXPECT_EQ(loaded.config.job.generation, "2026");
}

TEST(Generation, selects_the_formulas_that_no_option_chooses) {
  const JobConfig december = load("[training]\nbatch_size = 4").config;
  EXPECT_EQ(december.lr_scheduler.formula, RateFormula::december_2024);
  EXPECT_EQ(december.parallelism.split_rule, SplitRule::december_2024);
  const JobConfig last = default_config();
  EXPECT_EQ(last.lr_scheduler.formula, RateFormula::warm_up_stable_decay);
  EXPECT_EQ(last.parallelism.split_rule, SplitRule::balanced);
}

TEST(Generation, is_explained_with_the_place_that_decided) {
  EXPECT_EQ(load("[training]\nbatch_size = 4").generation_reason,
            "training.batch_size at job.toml:2:1 is a spelling that only December 2024 knew");
  EXPECT_EQ(load("[job]\nprint_config = false\n[compile]\nenable = false").generation_reason,
            "job.print_config at job.toml:2:1 is a later spelling than December 2024's");
  EXPECT_EQ(december_line(load("[job]\nprint_config = false\n[compile]\nenable = false")), "");
  EXPECT_EQ(december_line(load("", {"--job.generation=2024"})),
            "Defaults and formulas of December 2024 (job.generation 2024): asked for at command line: "
            "--job.generation");
  EXPECT_EQ(load("", {"--job.generation=2024"}).generation_reason, "asked for at command line: --job.generation");
  EXPECT_EQ(load("[training]\nsteps = 4", {"--training.batch_size=4"}).generation_reason,
            "the file has no spelling that only December 2024 knew");
}

TEST(Generation, december_cuts_a_batch_into_as_many_microbatches_as_stages) {
  const char* text = "[training]\nbatch_size = 8\n[experimental]\npipeline_parallel_degree = 2\n";
  EXPECT_EQ(load(text).config.parallelism.pipeline_parallel_microbatch_size, 4);
  EXPECT_EQ(load(text, {"--experimental.pipeline_parallel_schedule", "Interleaved1F1B"})
                .config.parallelism.pipeline_parallel_microbatch_size,
            2);
  EXPECT_EQ(load("[parallelism]\npipeline_parallel_degree = 2").config.parallelism.pipeline_parallel_microbatch_size,
            1);
}

}  // namespace
}  // namespace titan
