#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support.h"

namespace titan {
namespace {

TEST(Checks, further_checks_add_to_the_same_list_in_order) {
  ConfigCheck check = [](const JobConfig& config, const Origins& origins) {
    std::vector<Problem> problems;
    if (config.model.flavor == "9B")
      problems.push_back(origins.problem("model.flavor", "no flavor 9B", "did you mean 8B?"));
    problems.push_back(origins.note("model.name", "llama3 is not scaled"));
    return problems;
  };
  LoadedConfig loaded = load_config_text(Schema(), "[model]\nflavor = \"9B\"\n[training]\nstps = 3", "job.toml", {},
                                         std::span(&check, 1));
  ASSERT_EQ(loaded.problems.size(), 2u) << said(loaded);
  EXPECT_EQ(loaded.problems[0].where.to_string(), "job.toml:2:10");
  EXPECT_EQ(loaded.problems[1].where.to_string(), "job.toml:4:1");
  EXPECT_TRUE(contains(notes_of(loaded), "default of model.name: llama3 is not scaled"));
}

TEST(Effects, weights_in_float8_are_cast_again_in_backward_where_that_is_asked_in_any_spelling) {
  for (const bool value : {true, false}) {
    const std::string line = std::string("force_recompute_fp8_weight_in_bwd = ") + (value ? "true" : "false");
    for (const std::string& text :
         {"[model]\nconverters = [\"quantize.linear.float8\"]\n[quantize.linear.float8]\n" + line,
          "[model]\nconverters = [\"float8\"]\n[float8]\n" + line, "[float8]\nenable_float8_linear = true\n" + line}) {
      LoadedConfig loaded = load(text);
      EXPECT_EQ(said(loaded), "") << text;
      EXPECT_FALSE(contains(notes_of(loaded), "no effect")) << text;
      EXPECT_EQ(loaded.config.quantize.linear.float8.force_recompute_fp8_weight_in_bwd, value) << text;
    }
  }
}

TEST(Effects, a_default_written_out_in_a_file_is_not_worth_a_note_but_on_the_command_line_it_is) {
  EXPECT_EQ(notes_of(load("[parallelism]\npipeline_parallel_schedule = \"1F1B\"")), "");
  EXPECT_NE(notes_of(load_words({"--parallelism.pipeline_parallel_schedule", "1F1B"})), "");
}

}  // namespace
}  // namespace titan
