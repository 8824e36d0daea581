#include <gtest/gtest.h>

#include "support.h"

namespace titan {
namespace {

TEST(Toml, values_reach_their_typed_fields) {
  LoadedConfig loaded = load(R"(
[training]
steps = 12
max_norm = 2            # an integer where a float is meant
dataset = "C4_Test"
[lr_scheduler]
decay_ratio = 0.25
[debug]
seed = 7
dump_steps = [1, 5]
[model]
converters = "float8"
[parallelism]
module_fqns_per_model_part = [["tok_embeddings"], ["norm", "output"]]
[training.dataloader]
num_workers = 2
)");
  EXPECT_EQ(said(loaded), "");
  EXPECT_EQ(loaded.config.training.steps, 12);
  EXPECT_EQ(loaded.config.training.max_norm, 2.0);
  EXPECT_EQ(loaded.config.training.dataset, "c4_test");
  EXPECT_EQ(loaded.config.lr_scheduler.decay_ratio, 0.25);
  EXPECT_EQ(loaded.config.debug.seed, 7);
  EXPECT_EQ(loaded.config.debug.dump_steps, (std::vector<int64_t>{1, 5}));
  EXPECT_EQ(loaded.config.model.converters, std::vector<std::string>{"quantize.linear.float8"});
  EXPECT_EQ(loaded.config.parallelism.module_fqns_per_model_part.at(1).at(1), "output");
}

TEST(Toml, every_number_of_a_list_is_held_against_the_range) {
  EXPECT_EQ(load("[debug]\ndump_steps = [0, 5]").problems.size(), 1u);
  EXPECT_EQ(load("[debug]\ndump_steps = [5, 0]").problems.size(), 1u);
}

TEST(Toml, a_list_of_words_may_be_one_comma_separated_string) {
  LoadedConfig loaded = load("[checkpoint]\nenable = true\nexclude_from_loading = \"optimizer, dataloader\"");
  EXPECT_EQ(said(loaded), "");
  EXPECT_EQ(loaded.config.checkpoint.exclude_from_loading, (std::vector<std::string>{"optimizer", "dataloader"}));
}

TEST(Toml, a_short_policy_number_may_be_written_without_quotes) {
  LoadedConfig loaded = load("[activation_checkpoint]\nselective_ac_option = 3\n[job]\ngeneration = 2024");
  EXPECT_EQ(said(loaded), "");
  EXPECT_EQ(loaded.config.activation_checkpoint.selective_ac_option, "3");
  EXPECT_EQ(loaded.config.job.generation, "2024");
}

TEST(Toml, parameter_groups_are_tables_with_defaults) {
  LoadedConfig loaded = load(R"(
[[optimizer.param_groups]]
match = 'norm\.weight$'
weight_decay_multiplier = 0
[[optimizer.param_groups]]
match = "tok_embeddings"
lr_multiplier = 0.5
)");
  ASSERT_EQ(said(loaded), "");
  const auto& groups = loaded.config.optimizer.param_groups;
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].match, "norm\\.weight$");
  EXPECT_EQ(groups[0].lr_multiplier, 1.0);
  EXPECT_EQ(groups[0].weight_decay_multiplier, 0.0);
  EXPECT_EQ(groups[1].lr_multiplier, 0.5);
}

TEST(Toml, text_that_nests_beyond_all_measure_is_refused_with_its_place_and_other_text_is_not) {
  const std::string deep(20000, '['), braces(20000, '{');
  std::string dots = "a";
  for (int i = 0; i < 20000; ++i) dots += ".a";
  for (const std::string& text :
       {"a = " + deep, dots + " = 1", "[" + dots + "]", "a = {" + dots + " = 1}", "b = 1 # '\na = " + braces,
        "s = '\"'\n" + dots + " = 1", "a = \"\"\"\n\\\"\"\"\"\n" + dots + " = 1"}) {
    const std::string said = said_about(text);
    EXPECT_TRUE(contains(said, "job.toml:")) << said.substr(0, 300);
  }
  EXPECT_TRUE(contains(said_about("[training]\n" + dots + " = 1"), "job.toml:2:66: not valid TOML"));
  const std::string dotted_text = "[job]\ndescription = \"" + dots + "\" # " + dots + deep + "\n";
  EXPECT_EQ(said_about(dotted_text), "");
  EXPECT_EQ(said_about("[job]\ndescription = \"\"\"\n" + deep + dots + "\"\"\"\n"), "");
}

TEST(Toml, values_of_other_languages_are_answered_with_what_to_write) {
  for (const auto& [line, hint] : std::vector<std::pair<std::string, std::string>>{
           {"name = llama3  # no quotes", "write text in quotes: \"llama3\""},
           {"name = ./a/b.model", "write text in quotes: \"./a/b.model\""},
           {"name = True", "write true"},
           {"name = False\r", "write false"},
           {"name = None", "TOML has no None: leave the line out"},
           {"name = null", "TOML has no null: leave the line out"},
           {"name = 5, 6", "correct this line"},
           {"name = ", "correct this line"}}) {
    const std::string said = said_about("[model]\n" + line + "\n");
    EXPECT_TRUE(contains(said, "job.toml:2:")) << said;
    EXPECT_TRUE(contains(said, "; " + hint)) << said;
  }
}

TEST(Toml, a_table_where_a_list_of_tables_or_an_option_belongs_is_told_what_to_write) {
  EXPECT_EQ(
      said_about("[optimizer.param_groups]\nmatch = \"norm\"\n"),
      "job.toml:1:12: [optimizer.param_groups] is one table, and optimizer.param_groups is a list of tables; write "
      "[[optimizer.param_groups]]\n");
  EXPECT_TRUE(contains(said_about("[training.seq_len]\nx = 1\n"),
                       "training.seq_len is an option, not a section; write seq_len = … below [training]"));
}

TEST(Toml, an_infinite_number_is_answered_with_what_does_the_same) {
  EXPECT_TRUE(contains(said_about("[training]\nmax_norm = inf\n"), "0 switches clipping off"));
  EXPECT_TRUE(contains(said_about("", {"--training.max_norm=inf"}), "0 switches clipping off"));
  EXPECT_TRUE(contains(said_about("[optimizer]\nlr = -inf\n"), "give it a finite number"));
}

}  // namespace
}  // namespace titan
