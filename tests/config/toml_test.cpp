#include <gtest/gtest.h>

#include "support.h"

namespace titan {
namespace {

TEST(Toml, values_reach_their_typed_fields) {
  LoadedConfig loaded = load(R"(
[training]
steps = 12
max_norm = 2            # an integer where a float is meant
dataset = "STORIES"
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
  EXPECT_EQ(loaded.config.training.dataset, "stories");
  EXPECT_EQ(loaded.config.lr_scheduler.decay_ratio, 0.25);
  EXPECT_EQ(loaded.config.debug.seed, 7);
  EXPECT_EQ(loaded.config.debug.dump_steps, (std::vector<int64_t>{1, 5}));
  EXPECT_EQ(loaded.config.model.converters, std::vector<std::string>{"quantize.linear.float8"});
  EXPECT_EQ(loaded.config.parallelism.module_fqns_per_model_part.at(1).at(1), "output");
}

TEST(Toml, a_list_of_words_may_be_one_comma_separated_string) {
  LoadedConfig loaded = load("[checkpoint]\nenable = true\nexclude_from_loading = \"optimizer, dataloader\"");
  EXPECT_EQ(said(loaded), "");
  EXPECT_EQ(loaded.config.checkpoint.exclude_from_loading, (std::vector<std::string>{"optimizer", "dataloader"}));
}

TEST(Toml, an_unknown_key_is_named_with_file_line_column_and_the_nearest_spelling) {
  EXPECT_EQ(said_about("[training]\n  stps = 5"),
            "job.toml:2:3: training.stps is no option; did you mean training.steps?\n");
}

TEST(Toml, an_unknown_section_is_one_problem_however_many_options_it_holds) {
  EXPECT_EQ(said_about("[trainning]\nsteps = 5\nseq_len = 3\n[trainning.dataloader]\nx = 1"),
            "job.toml:1:2: [trainning] is no section; did you mean [training]?\n");
}

TEST(Toml, an_option_in_the_wrong_section_is_found_in_the_right_one) {
  EXPECT_TRUE(contains(said_about("[training]\nimplementation = \"fused\""), "did you mean optimizer.implementation?"));
}

TEST(Toml, a_key_outside_of_every_section_is_told_where_it_belongs) {
  EXPECT_TRUE(
      contains(said_about("seq_len = 5"), "job.toml:1:1: seq_len is no option; did you mean training.seq_len?"));
  EXPECT_TRUE(contains(said_about("training = 5"), "training is a section, not an option"));
}

TEST(Toml, a_value_of_the_wrong_type_is_placed_at_the_value) {
  EXPECT_EQ(said_about("[training]\nsteps = \"many\""),
            "job.toml:2:9: training.steps = \"many\" is not an integer; allowed: ≥ 1\n");
  EXPECT_TRUE(contains(said_about("[training]\nsteps = 1.5"), "training.steps = 1.5 is not an integer"));
  EXPECT_TRUE(contains(said_about("[compile]\nenable = 1"), "compile.enable = 1 is not true or false"));
  EXPECT_TRUE(contains(said_about("[optimizer]\nlr = nan"), "optimizer.lr = nan is not a number"));
  EXPECT_TRUE(contains(said_about("[job]\ndescription = 1979-05-27"), "a date or time is not a string"));
  EXPECT_TRUE(contains(said_about("[debug]\ndump_steps = [1, \"x\"]"), "is not a list of integers"));
  EXPECT_TRUE(contains(said_about("[training.steps]\nx = 1"), "[training.steps] is no section"));
}

TEST(Toml, a_value_out_of_range_says_what_is_allowed) {
  EXPECT_EQ(said_about("[training]\nseq_len = 0"),
            "job.toml:2:11: training.seq_len = 0 is out of range; allowed: ≥ 1 and ≤ 16777216\n");
  EXPECT_TRUE(contains(said_about("[optimizer]\nbeta1 = 1.0"), "allowed: ≥ 0 and < 1"));
  EXPECT_TRUE(contains(said_about("[training]\nglobal_batch_size = 0"), "allowed: ≥ 1 or -1"));
  EXPECT_TRUE(contains(said_about("[metrics]\nlog_freq = 0"), "metrics.log_freq = 0 is out of range"));
  EXPECT_TRUE(contains(said_about("[debug]\ndump_steps = [0, 5]"), "debug.dump_steps = 0 is out of range"));
  EXPECT_TRUE(contains(said_about("[job]\ndump_folder = \" \""), "job.dump_folder is empty"));
}

TEST(Toml, a_value_that_is_no_choice_gets_the_nearest_one_and_the_list) {
  EXPECT_EQ(said_about("[lr_scheduler]\ndecay_type = \"cosin\""),
            "job.toml:2:14: lr_scheduler.decay_type = \"cosin\" is no such value (did you mean \"cosine\"?); "
            "allowed: linear, sqrt, cosine\n");
}

TEST(Toml, every_problem_is_told_at_once_in_the_order_of_the_file) {
  std::string text =
      said_about("[training]\nstps = 5\nseq_len = -1\n[modl]\n[optimizer]\nname = \"SGD\"", {"--lr", "3"});
  EXPECT_TRUE(contains(text, "job.toml:2:1:"));
  EXPECT_TRUE(contains(text, "\njob.toml:3:11:"));
  EXPECT_TRUE(contains(text, "\njob.toml:4:2:"));
  EXPECT_TRUE(contains(text, "\njob.toml:6:8:"));
  EXPECT_TRUE(contains(text, "\ncommand line: --lr: lr is no option; did you mean --optimizer.lr?"));
}

TEST(Toml, broken_syntax_is_a_problem_with_its_place_beside_those_of_the_command_line) {
  std::string text = said_about("[training]\nsteps = \n", {"--training.stps", "4"});
  EXPECT_TRUE(contains(text, "job.toml:2:")) << text;
  EXPECT_TRUE(contains(text, "not valid TOML")) << text;
  EXPECT_TRUE(contains(text, "command line: --training.stps")) << text;
}

TEST(Toml, a_key_written_twice_is_refused) {
  EXPECT_TRUE(contains(said_about("[training]\nsteps = 1\nsteps = 2"), "job.toml:3:"));
}

TEST(Toml, a_short_policy_number_may_be_written_without_quotes) {
  LoadedConfig loaded = load("[activation_checkpoint]\nselective_ac_option = 3\n[job]\ngeneration = 2024");
  EXPECT_EQ(said(loaded), "");
  EXPECT_EQ(loaded.config.activation_checkpoint.selective_ac_option, "3");
  EXPECT_EQ(generation_of(loaded.config), Generation::december_2024);
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

TEST(Toml, every_mistake_in_a_parameter_group_has_its_place) {
  std::string text = said_about(R"([[optimizer.param_groups]]
mach = "norm"
lr_multiplier = "x"
weight_decay_multiplier = -1
)");
  EXPECT_TRUE(contains(text, "job.toml:2:1: optimizer.param_groups.mach is no option; did you mean match?")) << text;
  EXPECT_TRUE(contains(text, "optimizer.param_groups.match is missing")) << text;
  EXPECT_TRUE(contains(text, "job.toml:3:1: optimizer.param_groups.lr_multiplier is not a number")) << text;
  EXPECT_TRUE(contains(text, "job.toml:4:1: optimizer.param_groups.weight_decay_multiplier = -1 is out of range"))
      << text;
}

TEST(Toml, a_parameter_group_with_a_broken_pattern_is_refused) {
  EXPECT_TRUE(contains(said_about("[[optimizer.param_groups]]\nmatch = \"[\""), "is no regular expression"));
}

TEST(Toml, text_that_nests_beyond_all_measure_is_refused_with_its_place_and_other_text_is_not) {
  const std::string deep(20000, '['), braces(20000, '{');
  std::string dots = "a";
  for (int i = 0; i < 20000; ++i) dots += ".a";
  for (const std::string& text :
       {"a = " + deep, dots + " = 1", "[" + dots + "]", "a = {" + dots + " = 1}", "b = 1 # '\na = " + braces,
        "s = '\"'\n" + dots + " = 1", "a = \"\"\"\n\\\"\"\"\"\n" + dots + " = 1"}) {
    const std::string said = said_about(text);
    EXPECT_TRUE(contains(said, "values or keys are nested more than 32 levels deep")) << said.substr(0, 300);
    EXPECT_TRUE(contains(said, "job.toml:")) << said.substr(0, 300);
  }
  EXPECT_TRUE(contains(said_about("[training]\n" + dots + " = 1"), "job.toml:2:66: not valid TOML"));
  const std::string dotted_text = "[job]\ndescription = \"" + dots + "\" # " + dots + deep + "\n";
  EXPECT_EQ(said_about(dotted_text), "");
  EXPECT_EQ(said_about("[job]\ndescription = \"\"\"\n" + deep + dots + "\"\"\"\n"), "");
}

TEST(Toml, a_pattern_or_a_host_beyond_all_measure_is_refused) {
  const std::string deep(200000, '(');
  EXPECT_TRUE(contains(said_about("[[optimizer.param_groups]]\nmatch = '" + deep + "'"), "has 200000 bytes"));
  EXPECT_TRUE(contains(said_about("[comm]\nrank = 0\nworld_size = 2\nmaster = '" + deep + ":1'"), "has 200002 bytes"));
}

TEST(Toml, a_file_that_is_not_there_or_is_a_folder_is_a_problem) {
  EXPECT_TRUE(contains(said(load_words({"no/such/file.toml"})), "no/such/file.toml: cannot read"));
  EXPECT_FALSE(load_words({"."}).problems.empty());
}

}  // namespace
}  // namespace titan
