#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/config_text.h"
#include "titan/job/checks.h"

namespace titan {
namespace {

/// Sentences: tests/golden/config.txt.
std::string problems_of_options(const std::string& text) {
  const std::vector<ConfigCheck> checks{check_contradictions};
  return format_problems(load_config_text(Schema(), text, "job.toml", {}, checks).problems);
}

TEST(Contradictions, what_goes_together_has_nothing_against_it) {
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
    EXPECT_EQ(problems_of_options(text), "") << text;
  }
  for (const char* policy : {"op", "0", "12", "norm,swiglu", "ffn, qkv", "attention"}) {
    EXPECT_EQ(problems_of_options(fmt::format("[activation_checkpoint]\nselective_ac_option = \"{}\"", policy)), "")
        << policy;
  }
}

TEST(Contradictions, samples_are_written_by_ranks_that_see_whole_texts) {
  const std::string samples = "[metrics]\nsample_freq = 5\n";
  EXPECT_EQ(problems_of_options(samples), "");
  EXPECT_EQ(problems_of_options(samples + "[parallelism]\ncontext_parallel_degree = 2\n"),
            "job.toml:2:15: metrics.sample_freq = 5 with parallelism.context_parallel_degree = 2: no rank sees a whole "
            "text; set it to 0, or leave out context parallelism\n");
}

TEST(Contradictions, a_problem_that_a_later_check_reports_in_full_is_reported_once) {
  const ConfigCheck fuller = [](const JobConfig&, const Origins& origins) {
    const std::string what =
        "training.global_batch_size = 20 is not a multiple of training.local_batch_size = 8 on 3 ranks";
    return std::vector<Problem>{origins.problem("training.global_batch_size", what, "use 24")};
  };
  const std::string text = "[training]\nlocal_batch_size = 8\nglobal_batch_size = 20\n";
  const std::vector<ConfigCheck> checks{check_contradictions, fuller};
  const LoadedConfig loaded = load_config_text(Schema(), text, "job.toml", {}, checks);
  ASSERT_EQ(loaded.problems.size(), 1u) << format_problems(loaded.problems);
  EXPECT_EQ(loaded.problems[0].remedy, "use 24");
}

}  // namespace
}  // namespace titan
