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
  EXPECT_EQ(load(text).notes_for_one_process.size(), 3u);
  EXPECT_TRUE(load("[comm]\ntrain_timeout_seconds = 100").notes_for_one_process.empty());
}

TEST(OneProcess, a_world_may_have_one_rank_or_more) {
  const std::vector<ConfigCheck> checks{check_contradictions};
  for (const char* size : {"1", "2"}) {
    const std::vector<std::string> words{"--comm.rank=0", "--comm.master=a:1", "--comm.world_size", size};
    EXPECT_EQ(said(load_config(Schema(), words, checks)), "") << size;
  }
}

/// Facts of a machine where each input of `loaded` is at `found`, or is missing.
MachineFacts machine_with(const LoadedConfig& loaded, const std::optional<std::string>& found) {
  MachineFacts machine{2, {}};
  for (const InputPath& input : input_paths(loaded.config))
    machine.inputs.push_back({input, found, {"/here", "/there"}});
  return machine;
}
MachineFacts complete_machine(const LoadedConfig& loaded) { return machine_with(loaded, "/found"); }
MachineFacts empty_machine(const LoadedConfig& loaded) { return machine_with(loaded, std::nullopt); }

constexpr const char* kAllInputs =
    "[model]\ntokenizer_path = \"t.model\"\n[training]\ndataset = \"text\"\ndataset_path = \"a.jsonl\"\n"
    "[validation]\nenable = true\ndataset = \"text\"\ndataset_path = \"b.jsonl\"\n";

TEST(Inputs, of_a_job_are_its_tokenizer_and_the_corpora_that_it_reads) {
  using Paths = std::vector<InputPath>;
  EXPECT_EQ(input_paths(load(kAllInputs).config), (Paths{{"model.tokenizer_path", "t.model"},
                                                         {"training.dataset_path", "a.jsonl"},
                                                         {"validation.dataset_path", "b.jsonl"}}));
  EXPECT_EQ(input_paths(load(kAllInputs, {"--validation.enable=false"}).config).size(), 2u);
  const char* mixture =
      "[training]\ndataset = \"mixture\"\n[model]\nhf_assets_path = \"assets\"\n[[data.mixture]]\npath = \"a\"\n"
      "weight = 1\n[[data.mixture]]\npath = \"b\"\nweight = 1\n";
  EXPECT_EQ(input_paths(load(mixture).config),
            (Paths{{"model.hf_assets_path", "assets"}, {"data.mixture", "a"}, {"data.mixture", "b"}}));
}

TEST(Inputs, that_are_missing_are_reported_with_the_folders_that_were_searched) {
  const LoadedConfig loaded = load(kAllInputs);
  EXPECT_EQ(format_problems(check_inputs(loaded, complete_machine(loaded).inputs)), "");
  const std::vector<Problem> problems = check_inputs(loaded, empty_machine(loaded).inputs);
  ASSERT_EQ(problems.size(), 3u);
  EXPECT_EQ(problems[1].where.to_string(), "job.toml:5:16");
  EXPECT_EQ(problems[1].what, "training.dataset_path = \"a.jsonl\" does not exist (looked in /here, /there)");
}

TEST(Inputs, that_were_found_elsewhere_are_used_and_named) {
  LoadedConfig loaded = load(kAllInputs);
  const std::vector<std::string> lines = use_found_inputs(loaded, complete_machine(loaded).inputs);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "model.tokenizer_path = \"t.model\" is not in the current folder; using /found");
  EXPECT_EQ(*loaded.config.model.tokenizer_path, "/found");
  EXPECT_EQ(*loaded.config.validation.dataset_path, "/found");
  EXPECT_TRUE(use_found_inputs(loaded, complete_machine(loaded).inputs).empty());
}

TEST(Inputs, the_stories_that_used_to_be_generated_are_refused_with_what_to_write_instead) {
  const std::string said =
      said_about("[training]\ndataset = \"stories\"\n[validation]\nenable = true\ndataset = \"Stories\"");
  EXPECT_TRUE(contains(said,
                       "job.toml:2:11: training.dataset = \"stories\" is not offered here: the stories are a file now; "
                       "write training.dataset = \"text\" and training.dataset_path = "
                       "\"configs/corpora/stories.jsonl\""))
      << said;
  EXPECT_TRUE(contains(said, "validation.dataset_path = \"configs/corpora/stories_validation.jsonl\"")) << said;
}

TEST(Threads, a_few_per_processor_are_allowed_and_many_are_refused_with_the_limit) {
  EXPECT_TRUE(check_threads(load("[training]\nthreads = 8"), 2).empty());
  EXPECT_TRUE(check_threads(load("[training]\nthreads = 0"), 2).empty());
  EXPECT_EQ(format_problems(check_threads(load("[training]\nthreads = 9"), 2)),
            "job.toml:2:11: training.threads = 9 on 2 processors: so many threads only wait for each other; "
            "use at most 8, or 0 for one per processor\n");
}

TEST(Start, errors_and_missing_files_are_one_list_in_the_order_of_the_file) {
  const LoadedConfig loaded =
      load("[training]\nstps = 3\nthreads = 100000\n[model]\ntokenizer_path = \"no.model\"", {"--metrics.log_freq=0"});
  const StartCheck start = check_start(loaded, empty_machine(loaded));
  EXPECT_EQ(start.code, ExitCode::bad_config);
  std::vector<std::string> places;
  for (const Problem& problem : start.problems) places.push_back(problem.where.to_string());
  EXPECT_EQ(places, (std::vector<std::string>{"job.toml:2:1", "job.toml:3:11", "job.toml:5:18",
                                              "command line: --metrics.log_freq", "default of training.dataset"}))
      << format_problems(start.problems);
}

TEST(Start, only_what_is_missing_on_this_machine_ends_with_the_code_of_bad_data) {
  const LoadedConfig loaded = load("[training]\ndataset = \"text\"\ndataset_path = \"tests\"");
  MachineFacts facts = empty_machine(loaded);
  facts.inputs.back().found = "tests";
  const StartCheck start = check_start(loaded, facts);
  EXPECT_EQ(start.code, ExitCode::bad_data);
  EXPECT_EQ(start.problems.size(), 1u);
}

TEST(Start, validation_on_the_training_corpus_needs_a_share_of_it) {
  const LoadedConfig loaded = load(
      "[training]\ndataset = \"text\"\ndataset_path = \"a\"\n[data]\norder = \"megatron\"\nmegatron_split = \"1\"\n"
      "[validation]\nenable = true\ndataset = \"text\"\ndataset_path = \"b\"\n");
  MachineFacts facts = complete_machine(loaded);
  EXPECT_EQ(format_problems(check_start(loaded, facts).problems), "") << "another file is read whole";
  facts.validates_on_training_corpus = true;
  const StartCheck start = check_start(loaded, facts);
  EXPECT_EQ(start.code, ExitCode::bad_config);
  ASSERT_EQ(start.problems.size(), 1u);
  EXPECT_EQ(start.problems[0].key, "data.megatron_split");
}

TEST(Start, a_default_is_not_held_against_somebody_who_mistyped_the_option) {
  for (const char* text : {"[model]\ntokenizer_pth = \"x\"\n", "[modl]\ntokenizer_path = \"x\"\n",
                           "[model]\ntokenizer_path = 3\n", "[model"}) {
    const LoadedConfig loaded = load(text, {"--training.dataset=text", "--training.dataset_path=tests"});
    MachineFacts facts = empty_machine(loaded);
    facts.inputs.back().found = "tests";
    const StartCheck start = check_start(loaded, facts);
    EXPECT_EQ(start.problems.size(), 1u) << format_problems(start.problems);
    EXPECT_EQ(start.code, ExitCode::bad_config);
  }
}

TEST(Start, a_sound_config_with_its_files_has_nothing_against_it) {
  const LoadedConfig loaded = load_words({source_folder() / "configs/debug_model.toml"});
  const StartCheck start = check_start(loaded, complete_machine(loaded));
  EXPECT_EQ(format_problems(start.problems), "");
  EXPECT_EQ(start.code, ExitCode::success);
}

}  // namespace
}  // namespace titan
