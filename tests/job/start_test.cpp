#include "titan/job/start.h"

#include <gtest/gtest.h>

#include "config/support.h"
#include "titan/base/text.h"
#include "titan/job/checks.h"

namespace titan {
namespace {

TEST(OneProcess, options_for_several_processes_are_no_obstacle_and_say_why_they_do_nothing) {
  const char* text = "[comm]\ntrain_timeout_seconds = 30\ntrace_buf_size = 0\n[metrics]\nsave_for_all_ranks = true\n";
  EXPECT_EQ(said_about(text), "");
  EXPECT_EQ(notes_for_one_process(Schema(), load(text)).size(), 3u);
  EXPECT_TRUE(notes_for_one_process(Schema(), load("[comm]\ntrain_timeout_seconds = 100")).empty());
}

TEST(OneProcess, a_world_may_have_one_rank_or_more) {
  const std::vector<ConfigCheck> checks{check_contradictions};
  for (const char* size : {"1", "2"}) {
    const std::vector<std::string> words{"--comm.rank=0", "--comm.master=a:1", "--comm.world_size", size};
    EXPECT_EQ(said(load_config(Schema(), words, checks)), "") << size;
  }
}

class Inputs : public ScratchTest {};

TEST_F(Inputs, a_glob_is_there_when_it_matches) {
  write("a.txt", "x");
  auto about = [&](const std::string& pattern) {
    return format_problems(
        check_inputs(load("[training]\ndataset = \"text\"\ndataset_path = \"" + (folder_ / pattern).string() +
                          "\"\n[model]\ntokenizer_path = \"" + folder_.string() + "\"")));
  };
  EXPECT_EQ(about("*.txt"), "");
  EXPECT_NE(about("*.jsonl"), "");
}

TEST_F(Inputs, the_stories_that_used_to_be_generated_are_refused_with_what_to_write_instead) {
  const std::string said =
      said_about("[training]\ndataset = \"stories\"\n[validation]\nenable = true\ndataset = \"Stories\"");
  EXPECT_TRUE(contains(said,
                       "job.toml:2:11: training.dataset = \"stories\" is not offered here: the stories are a file now; "
                       "write training.dataset = \"text\" and training.dataset_path = "
                       "\"configs/corpora/stories.jsonl\""))
      << said;
  EXPECT_TRUE(contains(said, "validation.dataset_path = \"configs/corpora/stories_validation.jsonl\"")) << said;
}

/// An installation: configs/sub/job.toml and tokenizers/t.model, which the config names by its path from the top.
class Installation : public ScratchTest {
 protected:
  void SetUp() override {
    write("root/tokenizers/t.model", "x");
    write_config("./tokenizers/t.model");
  }
  void write_config(const std::string& tokenizer) const {
    write("root/configs/sub/job.toml", "[model]\ntokenizer_path = \"" + tokenizer +
                                           "\"\n[training]\ndataset = \"text\"\ndataset_path = \"" + config_.string() +
                                           "\"\n");
  }

  std::filesystem::path root_ = folder_ / "root";
  std::filesystem::path config_ = root_ / "configs/sub/job.toml";
};

TEST_F(Installation, a_path_in_a_config_is_found_above_the_config_and_said_to_be) {
  LoadedConfig loaded = load_words({config_});
  EXPECT_EQ(format_problems(check_inputs(loaded)), "");
  const std::string place = root_ / "tokenizers/t.model";
  EXPECT_EQ(join(locate_inputs(loaded), "\n"),
            "model.tokenizer_path = \"./tokenizers/t.model\" is not in the current folder; using " + place);
  EXPECT_EQ(*loaded.config.model.tokenizer_path, place);
}

TEST_F(Installation, the_current_folder_comes_first_and_needs_no_line) {
  // Tests run in the source folder, which has this file.
  write_config("README.md");
  write("root/configs/sub/README.md", "x");
  LoadedConfig loaded = load_words({config_});
  ASSERT_TRUE(std::filesystem::exists("README.md"));
  EXPECT_TRUE(locate_inputs(loaded).empty());
  EXPECT_EQ(*loaded.config.model.tokenizer_path, "README.md");
}

TEST_F(Installation, a_path_of_the_command_line_is_looked_for_in_the_current_folder_only) {
  LoadedConfig loaded = load_words({config_, "--model.tokenizer_path=tokenizers/t.model"});
  EXPECT_EQ(check_inputs(loaded).size(), 1u);
  EXPECT_TRUE(locate_inputs(loaded).empty());
}

TEST(Threads, a_few_per_processor_are_allowed_and_many_are_refused_with_the_limit) {
  EXPECT_TRUE(check_threads(load("[training]\nthreads = 8"), 2).empty());
  EXPECT_TRUE(check_threads(load("[training]\nthreads = 0"), 2).empty());
  EXPECT_EQ(format_problems(check_threads(load("[training]\nthreads = 9"), 2)),
            "job.toml:2:11: training.threads = 9 on 2 processors: so many threads only wait for each other; "
            "use at most 8, or 0 for one per processor\n");
}

TEST(HostWaits, that_a_gpus_steps_have_by_design_are_refused_with_the_options_that_ask_for_them) {
  const std::string offload = "[debug]\nsync_check = true\n[training]\nenable_cpu_offload = true\n";
  const std::string early = "[optimizer]\nearly_step_in_backward = true\n";
  const std::string float8 = "[quantize.linear.float8]\nenable_fsdp_float8_all_gather = true\n";
  const std::string converters = "[model]\nconverters = [\"quantize.linear.float8\"]\n";
  const auto obstacle = [](const std::string& text, bool on_gpu = true) {
    return host_wait_obstacle(load(text).config, on_gpu);
  };
  EXPECT_EQ(
      obstacle(offload + early),
      "debug.sync_check = true allows one host wait per step; training.enable_cpu_offload = true and "
      "optimizer.early_step_in_backward = true together also wait for each block's gradients, which its optimizer "
      "steps at once; disable one of the three");
  EXPECT_EQ(obstacle(offload + converters + float8),
            "debug.sync_check = true allows one host wait per step; training.enable_cpu_offload = true and "
            "quantize.linear.float8.enable_fsdp_float8_all_gather = true together also wait for the scales of each "
            "block's weights, which it casts itself; disable one of the three");
  EXPECT_EQ(obstacle(offload), "");
  EXPECT_EQ(obstacle(offload + float8), "") << "float8 that no converter asks for";
  EXPECT_EQ(obstacle("[training]\nenable_cpu_offload = true\n" + early), "");
  EXPECT_EQ(obstacle(offload + early, /*on_gpu=*/false), "");
}

TEST(Start, errors_and_missing_files_are_one_list_in_the_order_of_the_file) {
  const LoadedConfig loaded =
      load("[training]\nstps = 3\nthreads = 100000\n[model]\ntokenizer_path = \"no.model\"", {"--metrics.log_freq=0"});
  const StartCheck start = check_start(loaded, 2);
  EXPECT_EQ(start.code, ExitCode::bad_config);
  std::vector<std::string> places;
  for (const Problem& problem : start.problems) places.push_back(problem.where.to_string());
  EXPECT_EQ(places, (std::vector<std::string>{"job.toml:2:1", "job.toml:3:11", "job.toml:5:18",
                                              "command line: --metrics.log_freq", "default of training.dataset"}))
      << format_problems(start.problems);
}

TEST(Start, only_what_is_missing_on_this_machine_ends_with_the_code_of_bad_data) {
  const StartCheck start = check_start(load("[training]\ndataset = \"text\"\ndataset_path = \"tests\""), 2);
  EXPECT_EQ(start.code, ExitCode::bad_data);
  EXPECT_EQ(start.problems.size(), 1u);
}

TEST(Start, a_default_is_not_held_against_somebody_who_mistyped_the_option) {
  for (const char* text :
       {"[model]\ntokenizer_pth = \"x\"\n[training]\ndataset = \"text\"\ndataset_path = \"tests\"",
        "[modl]\ntokenizer_path = \"x\"\n[training]\ndataset = \"text\"\ndataset_path = \"tests\"",
        "[model]\ntokenizer_path = 3\n[training]\ndataset = \"text\"\ndataset_path = \"tests\"", "[model"}) {
    const StartCheck start = check_start(load(text), 2);
    EXPECT_EQ(start.problems.size(), 1u) << format_problems(start.problems);
    EXPECT_EQ(start.code, ExitCode::bad_config);
  }
}

TEST(Start, a_sound_config_with_its_files_has_nothing_against_it) {
  const StartCheck start = check_start(load_words({source_folder() / "configs/debug_model.toml"}), 2);
  EXPECT_EQ(format_problems(start.problems), "");
  EXPECT_EQ(start.code, ExitCode::success);
}

}  // namespace
}  // namespace titan
