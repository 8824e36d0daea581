#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support.h"

namespace titan {
namespace {

TEST(Checks, a_global_batch_is_a_multiple_of_what_one_pass_takes) {
  EXPECT_TRUE(
      contains(said_about("[training]\nlocal_batch_size = 8\nglobal_batch_size = 20"),
               "job.toml:3:21: training.global_batch_size = 20 is no multiple of training.local_batch_size = 8; "
               "use 16 or 24 (a multiple of 8), or -1"));
  EXPECT_EQ(said_about("[training]\nlocal_batch_size = 8\nglobal_batch_size = 32"), "");
  EXPECT_FALSE(said_about("[training]\nglobal_batch_size = 32\n[parallelism]\ndata_parallel_shard_degree = 8").empty());
}

TEST(Checks, a_problem_that_a_later_check_tells_in_full_is_told_once) {
  const ConfigCheck fuller = [](const JobConfig&, const Origins& origins) {
    const std::string what =
        "training.global_batch_size = 20 is no multiple of training.local_batch_size = 8 on 3 ranks";
    return std::vector<Problem>{origins.problem("training.global_batch_size", what, "use 24")};
  };
  const std::string text = "[training]\nlocal_batch_size = 8\nglobal_batch_size = 20\n";
  const std::vector<ConfigCheck> checks{fuller};
  const LoadedConfig loaded = load_config_text(Schema(), text, "job.toml", {}, checks);
  ASSERT_EQ(loaded.problems.size(), 1u) << format_problems(loaded.problems);
  EXPECT_EQ(loaded.problems[0].remedy, "use 24");
}

TEST(Checks, the_balancer_of_flex_attention_is_refused_with_the_nearest_one) {
  const std::string said = said_about("[parallelism]\ncontext_parallel_load_balancer = \"ptrr\"");
  EXPECT_TRUE(contains(said, "headtail")) << said;
  EXPECT_TRUE(contains(said, "flex attention")) << said;
}

TEST(Checks, a_profiling_period_holds_its_warm_up) {
  EXPECT_TRUE(
      contains(said_about("[profiling]\nenable_profiling = true\nprofile_freq = 3"), "profiling.profile_freq = 3"));
  EXPECT_EQ(said_about("[profiling]\nprofile_freq = 3"), "");
}

TEST(Checks, async_tensor_parallel_does_not_need_compile_as_it_does_upstream) {
  EXPECT_EQ(said_about("[parallelism]\ntensor_parallel_degree = 2\nenable_async_tensor_parallel = true"), "");
}

TEST(Checks, stepping_inside_backward_does_not_go_with_a_pipeline) {
  const char* text = "[optimizer]\nearly_step_in_backward = true\n";
  for (const char* generation : {"2024", "2026"}) {
    EXPECT_TRUE(
        contains(said_about(text, {"--parallelism.pipeline_parallel_degree", "2", "--job.generation", generation}),
                 "does not go with a pipeline"));
  }
}

TEST(Checks, stepping_inside_backward_says_that_clipping_is_off) {
  EXPECT_TRUE(contains(notes_of(load("[optimizer]\nearly_step_in_backward = true\n[training]\nmax_norm = 1.0")),
                       "training.max_norm has no effect"));
}

TEST(Checks, weight_decay_that_flips_weights_is_refused) {
  EXPECT_TRUE(contains(said_about("[optimizer]\nlr = 0.1\nweight_decay = 100"),
                       "job.toml:3:16: optimizer.weight_decay = 100 times optimizer.lr = 0.1 is above 1"));
  EXPECT_TRUE(contains(said_about("[optimizer]\nlr = 11"), "job.toml:2:6: optimizer.weight_decay = 0.1 times"));
  EXPECT_EQ(said_about("[optimizer]\nlr = 11\nname = \"Adam\""), "");  // its decay goes through the moments
}

TEST(Checks, a_size_that_breaks_nothing_has_no_upper_limit) {
  for (const char* text :
       {"[optimizer]\nlr = 250\nweight_decay = 0", "[optimizer]\neps = 100", "[training]\nloss_chunks = 1000000",
        "[[optimizer.param_groups]]\nmatch = \"norm\"\nlr_multiplier = 1e5\nweight_decay_multiplier = 1e4"}) {
    EXPECT_EQ(said_about(text), "");
  }
}

TEST(Checks, a_schedule_of_ones_own_needs_its_file) {
  const char* text =
      "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = \"PipelineScheduleMulti\"";
  EXPECT_TRUE(contains(said_about(text), "name the file in parallelism.pipeline_parallel_schedule_csv"));
  EXPECT_EQ(said_about(text, {"--parallelism.pipeline_parallel_schedule_csv", "a.csv"}), "");
}

TEST(Checks, rank_world_size_and_master_belong_together) {
  EXPECT_TRUE(contains(said_about("[comm]\nrank = 0"), "belong together"));
  EXPECT_EQ(said_about("[comm]\nrank = 0\nworld_size = 2\nmaster = \"a:1\""), "");
  EXPECT_TRUE(contains(said_about("[comm]\nrank = 2\nworld_size = 2\nmaster = \"a:1\""), "ranks count from 0"));
  for (const char* master : {"nohost", ":4000", "a:", "a:0", "a:70000", "a:4000x"}) {
    EXPECT_TRUE(contains(said_about(fmt::format("[comm]\nrank = 0\nworld_size = 2\nmaster = \"{}\"", master)),
                         "write host:port"))
        << master;
  }
  EXPECT_EQ(said_about("[comm]\nrank = 0\nworld_size = 2\nmaster = \"[fe80::1]:4000\""), "");
  EXPECT_EQ(said_about("[comm]\nmode = \"fake_backend\"\nworld_size = 32"), "");
  EXPECT_TRUE(contains(said_about("[comm]\nmode = \"local_tensor\""), "titan_train launch -n N"));
}

TEST(Checks, checkpoint_options_that_need_each_other_say_so) {
  EXPECT_TRUE(
      contains(said_about("[checkpoint]\nenable = true\ninitial_load_in_hf = true\ninitial_load_model_only = false"),
               "checkpoint.initial_load_in_hf needs checkpoint.initial_load_model_only = true"));
  EXPECT_TRUE(contains(said_about("[checkpoint]\nenable = true\ninitial_load_in_hf_quantized = true"),
                       "needs checkpoint.initial_load_in_hf = true"));
  EXPECT_TRUE(contains(said_about("[checkpoint]\nenable = true\nlast_save_in_hf = true\nlast_save_model_only = false"),
                       "needs checkpoint.last_save_model_only = true"));
  EXPECT_TRUE(contains(said_about("[checkpoint]\nenable = true\nload_only = true\ncreate_seed_checkpoint = true"),
                       "contradicts checkpoint.load_only"));
  EXPECT_TRUE(contains(said_about("[checkpoint]\ncreate_seed_checkpoint = true"),
                       "checkpoint.create_seed_checkpoint needs checkpoint.enable = true"));
  EXPECT_TRUE(contains(said_about("[checkpoint]\nrequire_resume = true"),
                       "checkpoint.require_resume needs checkpoint.enable = true"));
  EXPECT_TRUE(contains(said_about("[checkpoint]\nkeep_latest_k = 1"), "could delete the only good checkpoint"));
}

TEST(Checks, float8_recipes_that_exclude_each_other_are_refused) {
  const char* text =
      "[model]\nconverters = [\"quantize.linear.float8\"]\n[quantize.linear.float8]\nrecipe_name = \"rowwise\"\n";
  EXPECT_EQ(said_about(text), "");
  EXPECT_TRUE(
      contains(said_about(text, {"--quantize.linear.float8.enable_fsdp_float8_all_gather"}), "does not go with"));
  EXPECT_TRUE(contains(said_about(text, {"--quantize.linear.float8.emulate", "--compile.enable"}), "does not go with"));
}

TEST(Checks, text_of_ones_own_needs_a_path) {
  EXPECT_TRUE(contains(said_about("[training]\ndataset = \"text\""), "needs training.dataset_path"));
  EXPECT_TRUE(contains(said_about("[validation]\nenable = true\ndataset = \"text\""), "needs validation.dataset_path"));
  EXPECT_EQ(said_about("[training]\ndataset = \"text\"\ndataset_path = \"a.txt\""), "");
}

TEST(Checks, the_finer_recompute_policies_are_words_and_anything_else_is_refused) {
  for (const char* good : {"op", "0", "12", "norm,swiglu", "ffn, qkv", "attention"}) {
    EXPECT_EQ(said_about(std::string("[activation_checkpoint]\nselective_ac_option = \"") + good + "\""), "") << good;
  }
  for (const char* bad : {"", "ops", "-1", "2.5", "norm,", "op,norm", "99999999999999999999"}) {
    std::string text = said_about(std::string("[activation_checkpoint]\nselective_ac_option = \"") + bad + "\"");
    EXPECT_TRUE(contains(text, "job.toml:2:23: activation_checkpoint.selective_ac_option")) << bad << text;
  }
}

TEST(Checks, a_contradiction_is_not_told_of_an_option_whose_own_value_is_wrong) {
  std::string text = said_about("[training]\nlocal_batch_size = 0\nglobal_batch_size = 12");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
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
  EXPECT_EQ(said(loaded),
            "job.toml:2:10: no flavor 9B; did you mean 8B?\n"
            "job.toml:4:1: training.stps is no option; did you mean training.steps?\n");
  EXPECT_TRUE(contains(notes_of(loaded), "default of model.name: llama3 is not scaled"));
}

TEST(Effects, an_option_without_meaning_here_is_accepted_with_its_reason) {
  LoadedConfig loaded = load("[training]\ngc_freq = 100\n[parallelism]\nexpert_parallel_degree = 1");
  EXPECT_EQ(said(loaded), "");
  EXPECT_TRUE(contains(notes_of(loaded),
                       "job.toml:2:11: training.gc_freq has no effect here: nothing here is garbage-collected"));
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

TEST(Effects, an_option_that_asks_for_what_is_not_offered_is_refused) {
  EXPECT_TRUE(contains(said_about("[parallelism]\nexpert_parallel_degree = 2"),
                       "is not offered here: there are no expert layers"));
  EXPECT_TRUE(contains(said_about("[fault_tolerance]\nenable = true"), "is not offered here: TorchFT"));
  EXPECT_TRUE(contains(said_about("[activation_checkpoint]\nmode = \"memory_budget\""), "is not offered here"));
  EXPECT_TRUE(contains(said_about("[float8]\nscaling_type_input = \"delayed\""), "removed in January 2025"));
  EXPECT_TRUE(contains(said_about("[model]\nconverters = [\"mx\"]"), "Blackwell"));
  EXPECT_TRUE(contains(said_about("[experimental]\ncustom_import = \"x.y\""), "not offered here"));
}

TEST(Checks, a_master_without_a_port_and_one_whose_port_is_out_of_range_are_told_apart) {
  const auto said_of = [](const std::string& master) {
    return said(load_words({"--comm.rank=0", "--comm.world_size=2", "--comm.master=" + master}));
  };
  EXPECT_TRUE(contains(said_of("h"), "comm.master = \"h\" has no port; write host:port, with a port from 1 to 65535"));
  for (const char* port : {"99999", "65536", "0", "123456789012345678901"}) {
    const std::string text = said_of(fmt::format("h:{}", port));
    EXPECT_TRUE(contains(text, fmt::format("has a port out of range, {}; write host:port", port))) << text;
  }
  EXPECT_EQ(said_of("h:65535"), "");
}

TEST(Effects, options_that_another_one_switches_off_are_told_in_one_line_per_switch) {
  std::string notes =
      notes_of(load("[parallelism]\npipeline_parallel_schedule = \"GPipe\"\npipeline_parallel_microbatch_size = 4\n"));
  EXPECT_EQ(notes,
            "no effect unless parallelism.pipeline_parallel_degree above 1: parallelism.pipeline_parallel_schedule, "
            "parallelism.pipeline_parallel_microbatch_size\n");
  EXPECT_EQ(notes_of(load("[lr_scheduler]\ndecay_ratio = 0\ndecay_type = \"cosine\"")),
            "no effect unless job.generation is 2026 and lr_scheduler.decay_ratio not 0: lr_scheduler.decay_type\n");
}

TEST(Effects, a_default_written_out_in_a_file_is_not_worth_a_note_but_on_the_command_line_it_is) {
  EXPECT_EQ(notes_of(load("[parallelism]\npipeline_parallel_schedule = \"1F1B\"")), "");
  EXPECT_NE(notes_of(load_words({"--parallelism.pipeline_parallel_schedule", "1F1B"})), "");
}

TEST(Effects, the_shape_of_the_decay_is_fixed_in_december_2024) {
  EXPECT_TRUE(contains(notes_of(load("[training]\nwarmup_steps = 2", {"--lr_scheduler.decay_ratio", "0.5"})),
                       "no effect unless job.generation is 2026: lr_scheduler.decay_ratio"));
}

}  // namespace
}  // namespace titan
