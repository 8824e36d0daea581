#include <gtest/gtest.h>

#include "support.h"

namespace titan {
namespace {

class CommandLineFile : public ScratchTest {};

TEST(CommandLine, takes_values_as_the_next_word_or_behind_an_equals_sign) {
  JobConfig config = load_words({"--training.steps", "7", "--optimizer.lr=1e-4", "--job.description=a = b"}).config;
  EXPECT_EQ(config.training.steps, 7);
  EXPECT_EQ(config.optimizer.lr, 1e-4);
  EXPECT_EQ(config.job.description, "a = b");
}

TEST(CommandLine, a_flag_is_on_off_or_given_a_value) {
  EXPECT_TRUE(load_words({"--debug.deterministic"}).config.debug.deterministic);
  EXPECT_TRUE(load_words({"--debug.deterministic=true"}).config.debug.deterministic);
  EXPECT_FALSE(load_words({"--debug.deterministic=False"}).config.debug.deterministic);
  const char* on = "[debug]\ndeterministic = true";
  EXPECT_FALSE(load(on, {"--debug.no-deterministic"}).config.debug.deterministic);
  EXPECT_FALSE(load(on, {"--debug.no_deterministic"}).config.debug.deterministic);
  EXPECT_TRUE(load(on, {"--debug.no-deterministic=false"}).config.debug.deterministic);
}

TEST(CommandLine, a_dash_equals_an_underscore) {
  EXPECT_EQ(load_words({"--training.seq-len", "64"}).config.training.seq_len, 64);
  EXPECT_EQ(load_words({"--lr-scheduler.warmup-steps=3"}).config.lr_scheduler.warmup_steps, 3);
}

TEST(CommandLine, a_list_is_one_comma_separated_word) {
  JobConfig config = load_words({"--checkpoint.exclude_from_loading", "optimizer,dataloader", "--debug.dump_steps=1,2",
                                 "--parallelism.module_fqns_per_model_part", "a,b;c"})
                         .config;
  EXPECT_EQ(config.checkpoint.exclude_from_loading, (std::vector<std::string>{"optimizer", "dataloader"}));
  EXPECT_EQ(config.debug.dump_steps, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(config.parallelism.module_fqns_per_model_part, (std::vector<std::vector<std::string>>{{"a", "b"}, {"c"}}));
}

TEST(CommandLine, a_unique_prefix_stands_for_its_option) {
  EXPECT_EQ(load_words({"--training.ste", "5"}).config.training.steps, 5);
  EXPECT_TRUE(load_words({"--debug.sync"}).config.debug.sync_check);
  EXPECT_FALSE(load("[debug]\nsync_check = true", {"--debug.no-sync"}).config.debug.sync_check);
}

TEST(CommandLine, a_whole_name_is_never_ambiguous) { EXPECT_EQ(said(load_words({"--checkpoint.interval", "5"})), ""); }

TEST(CommandLine, of_a_repeated_option_the_last_wins_whatever_its_spelling) {
  EXPECT_EQ(load_words({"--training.steps", "5", "--training.steps=6"}).config.training.steps, 6);
  EXPECT_EQ(
      load_words({"--training.batch_size", "5", "--training.local_batch_size", "6"}).config.training.local_batch_size,
      6);
  EXPECT_EQ(
      load_words({"--training.local_batch_size", "6", "--training.batch_size", "5"}).config.training.local_batch_size,
      5);
}

TEST(CommandLine, an_empty_value_and_a_negative_number_are_values) {
  JobConfig config = load("[job]\ndescription = \"x\"", {"--job.description=", "--validation.steps", "-1"}).config;
  EXPECT_EQ(config.job.description, "");
  EXPECT_EQ(config.validation.steps, -1);
  EXPECT_EQ(load_words({"--job.description", "", "--training.steps", "3"}).config.training.steps, 3);
}

TEST(CommandLine, an_option_behind_one_without_its_value_still_counts) {
  EXPECT_EQ(load_words({"--training.steps", "--metrics.log_freq", "3"}).config.metrics.log_freq, 3);
}

TEST(CommandLine, none_clears_an_option_that_may_be_none) {
  EXPECT_FALSE(load("[debug]\nseed = 3", {"--debug.seed", "none"}).config.debug.seed.has_value());
}

TEST(CommandLine, wins_over_the_file_which_wins_over_the_default) {
  LoadedConfig loaded = load("[training]\nsteps = 5\nseq_len = 64", {"--training.steps", "6"});
  EXPECT_EQ(loaded.config.training.steps, 6);
  EXPECT_EQ(loaded.config.training.seq_len, 64);
  EXPECT_EQ(loaded.config.training.local_batch_size, 8);
  EXPECT_EQ(loaded.origins.place("training.steps").to_string(), "command line: --training.steps");
  EXPECT_EQ(loaded.origins.place("training.seq_len").to_string(), "job.toml:3:11");
  EXPECT_EQ(loaded.origins.place("training.local_batch_size").to_string(), "default of training.local_batch_size");
}

TEST(CommandLine, a_value_may_look_like_anything) {
  EXPECT_EQ(load_words({"--job.description", "[a,b]"}).config.job.description, "[a,b]");
  EXPECT_EQ(load_words({"--job.description=--training.steps"}).config.job.description, "--training.steps");
  EXPECT_EQ(load_words({"--job.description", "'quoted' \"twice\""}).config.job.description, "'quoted' \"twice\"");
}

TEST_F(CommandLineFile, the_config_file_is_a_word_of_its_own_or_an_option) {
  std::filesystem::path file = write("named.toml", "[training]\nsteps = 77\n");
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{file},
                                             {"--job.config_file", file},
                                             {"--job.config-file=" + file.string()},
                                             {"--training.seq_len", "8", file}}) {
    LoadedConfig loaded = load_words(words);
    EXPECT_EQ(said(loaded), "");
    EXPECT_EQ(loaded.config.training.steps, 77);
    EXPECT_EQ(loaded.config.job.config_file, file);
  }
}

}  // namespace
}  // namespace titan
