#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support.h"

namespace titan {
namespace {

TEST(Checks, what_goes_together_has_nothing_against_it) {
  const std::string float8 =
      "[model]\nconverters = [\"quantize.linear.float8\"]\n[quantize.linear.float8]\nrecipe_name = \"rowwise\"\n";
  for (const std::string& text :
       {std::string("[training]\nlocal_batch_size = 8\nglobal_batch_size = 32"), float8,
        std::string("[profiling]\nprofile_freq = 3"), std::string("[optimizer]\nlr = 250\nweight_decay = 0"),
        std::string("[optimizer]\nlr = 11\nname = \"Adam\""),  // its decay goes through the moments
        std::string("[optimizer]\neps = 100"), std::string("[training]\nloss_chunks = 1000000"),
        std::string("[[optimizer.param_groups]]\nmatch = \"norm\"\nlr_multiplier = 1e5\nweight_decay_multiplier = 1e4"),
        std::string(
            "[parallelism]\ntensor_parallel_degree = 2\nenable_async_tensor_parallel = true"),  // without compile
        std::string(
            "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = \"PipelineScheduleMulti\"\n"
            "pipeline_parallel_schedule_csv = \"a.csv\""),
        std::string("[comm]\nrank = 0\nworld_size = 2\nmaster = \"a:65535\""),
        std::string("[comm]\nrank = 0\nworld_size = 2\nmaster = \"[fe80::1]:4000\""),
        std::string("[comm]\nmode = \"fake_backend\"\nworld_size = 32"),
        std::string("[training]\ndataset = \"text\"\ndataset_path = \"a.txt\"")}) {
    EXPECT_EQ(said_about(text), "") << text;
  }
  for (const char* policy : {"op", "0", "12", "norm,swiglu", "ffn, qkv", "attention"}) {
    EXPECT_EQ(said_about(fmt::format("[activation_checkpoint]\nselective_ac_option = \"{}\"", policy)), "") << policy;
  }
}

TEST(Checks, a_problem_that_a_later_check_reports_in_full_is_reported_once) {
  const ConfigCheck fuller = [](const JobConfig&, const Origins& origins) {
    const std::string what =
        "training.global_batch_size = 20 is not a multiple of training.local_batch_size = 8 on 3 ranks";
    return std::vector<Problem>{origins.problem("training.global_batch_size", what, "use 24")};
  };
  const std::string text = "[training]\nlocal_batch_size = 8\nglobal_batch_size = 20\n";
  const std::vector<ConfigCheck> checks{fuller};
  const LoadedConfig loaded = load_config_text(Schema(), text, "job.toml", {}, checks);
  ASSERT_EQ(loaded.problems.size(), 1u) << format_problems(loaded.problems);
  EXPECT_EQ(loaded.problems[0].remedy, "use 24");
}

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
