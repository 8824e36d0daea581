#include <gtest/gtest.h>

#include <fstream>

#include "support.h"

namespace titan {
namespace {

std::string missing_parts(std::string_view text, const std::vector<std::string>& overrides = {}) {
  return format_problems(check_buildable(Schema(), load(text, overrides)));
}

TEST(Buildable, a_plain_run_on_one_device_asks_for_nothing_that_is_missing) {
  EXPECT_EQ(missing_parts(""), "");
  EXPECT_EQ(missing_parts("[parallelism]\ndata_parallel_shard_degree = 1"), "");
}

TEST(Buildable, everything_missing_is_listed_together_with_its_place) {
  std::string text = missing_parts(R"([checkpoint]
enable = true
interval = 100
[compile]
enable = true
)",
                                   {"--parallelism.tensor_parallel_degree", "2", "--metrics.enable_tensorboard"});
  EXPECT_TRUE(
      contains(text, "job.toml:2:10: checkpoint.enable = true needs a part that is not built yet: checkpoints"));
  EXPECT_TRUE(contains(text, "job.toml:5:10: compile.enable = true needs a part that is not built yet: fused kernels"));
  EXPECT_TRUE(
      contains(text, "command line: --parallelism.tensor_parallel_degree: parallelism.tensor_parallel_degree = 2"));
  EXPECT_TRUE(contains(text, "metrics.enable_tensorboard = true"));
}

TEST(Buildable, options_of_a_missing_part_that_is_switched_off_are_no_obstacle) {
  EXPECT_EQ(missing_parts("[checkpoint]\ninterval = 100\n[profiling]\nprofile_freq = 50"), "");
}

TEST(Buildable, a_config_with_missing_parts_is_a_valid_config_all_the_same) {
  EXPECT_EQ(said_about("[checkpoint]\nenable = true\n[compile]\nenable = true"), "");
}

TEST(Inputs, a_tokenizer_or_corpus_that_is_not_there_is_named_with_its_place) {
  std::string text = format_problems(check_inputs(
      load("[model]\ntokenizer_path = \"no.model\"\n[training]\ndataset = \"text\"\ndataset_path = \"no.txt\"")));
  EXPECT_TRUE(contains(text, "job.toml:2:18: model.tokenizer_path = \"no.model\" does not exist")) << text;
  EXPECT_TRUE(contains(text, "job.toml:5:16: training.dataset_path = \"no.txt\" does not exist")) << text;
}

TEST(Inputs, c4_is_never_downloaded) {
  std::string text = format_problems(check_inputs(load("[validation]\nenable = true")));
  EXPECT_TRUE(contains(text, "training.dataset = \"c4_test\" is not downloaded")) << text;
  EXPECT_TRUE(contains(text, "validation.dataset = \"c4_validation\" is not downloaded")) << text;
}

TEST(Inputs, generated_stories_need_no_file) {
  std::filesystem::path tokenizer = std::filesystem::path(testing::TempDir()) / "present.model";
  std::ofstream(tokenizer) << "x";
  LoadedConfig loaded = load("[training]\ndataset = \"stories\"", {"--model.tokenizer_path", tokenizer});
  EXPECT_TRUE(check_inputs(loaded).empty());
}

}  // namespace
}  // namespace titan
