// Planned = taken: the peak of whole runs against the plan's memory table. What is counted is what the CPU allocator
// hands out; oneDNN's scratch memory, which depends on the processor, is counted apart.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "support/allocations.h"
#include "support/job.h"
#include "titan/train/run.h"

namespace titan {
namespace {

struct Setting {
  std::string name;
  std::vector<std::string> words = {};
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

class StepMemory : public ::testing::TestWithParam<Setting> {};

/// The peak of a whole run, and the plan's.
std::pair<int64_t, int64_t> peak_and_plan(const JobConfig& config) {
  const Log log;
  int64_t planned = 0;
  const PeakBytes peak = peak_allocation([&] {
    const auto run = build_run(config, World(), log);
    planned = run->model.plan().predicted_bytes();
    train(*run);
  });
  return {peak.tensors, planned};
}

TEST_P(StepMemory, OfAWholeRunIsWithinFivePercentOfThePlan) {
  at::set_num_threads(1);
  TestFolder folder;
  std::vector<std::string> words = small_job_words(folder);
  std::erase_if(words, [](const std::string& word) { return word.find("override") != word.npos; });
  for (const char* word : {"--training.local_batch_size=8", "--training.seq_len=128", "--training.steps=2"}) {
    words.push_back(word);
  }
  words.insert(words.end(), GetParam().words.begin(), GetParam().words.end());
  const auto [peak, planned] = peak_and_plan(job_config(words));
  EXPECT_NEAR(static_cast<double>(peak), static_cast<double>(planned), 0.05 * static_cast<double>(planned));
}

TEST(StepMemoryOfFrozenParameters, HasNeitherGradientsNorMomentsOfThemAsPlanned) {
  at::set_num_threads(1);
  TestFolder folder;
  JobConfig config = job_config(small_job_words(folder, {"--model.override.dim=256", "--training.steps=2"}));
  const auto [whole, whole_plan] = peak_and_plan(config);
  config.job.dump_folder = folder / "frozen";
  config.optimizer.param_groups.push_back(
      {.match = "^(tok_embeddings|layers\\.0)", .lr_multiplier = 0, .weight_decay_multiplier = 1});
  const auto [frozen, planned] = peak_and_plan(config);
  EXPECT_NEAR(static_cast<double>(frozen), static_cast<double>(planned), 0.05 * static_cast<double>(planned));
  // Of weights, gradients and two moments a quarter remains of half of the model.
  EXPECT_LT(planned, whole_plan * 3 / 4);
  EXPECT_LT(frozen, whole * 3 / 4);
}

const std::vector<std::string> k60M{"--model.override.dim=512", "--model.override.n_layers=10",
                                    "--model.override.n_heads=8", "--model.override.vocab_size=16000"};

std::vector<std::string> of_60m(std::vector<std::string> more) {
  more.insert(more.begin(), k60M.begin(), k60M.end());
  return more;
}

INSTANTIATE_TEST_SUITE_P(
    Settings, StepMemory,
    ::testing::Values(
        Setting{"debug_model"}, Setting{"all_recomputed", {"--activation_checkpoint.mode=full"}},
        Setting{"every_second_product", {"--activation_checkpoint.mode=selective"}},
        Setting{"bf16", {"--training.mixed_precision_param=bfloat16"}},
        Setting{"bf16_gradients", {"--training.mixed_precision_param=bfloat16", "--training.gradient_dtype=bfloat16"}},
        Setting{"accumulated", {"--training.global_batch_size=16", "--model.norm_type=layernorm"}},
        Setting{"long", {"--training.seq_len=1024", "--training.local_batch_size=2"}}, Setting{"of_60m", of_60m({})},
        Setting{"of_60m_recomputed", of_60m({"--activation_checkpoint.mode=full", "--training.loss_chunks=1"})},
        Setting{"of_60m_bf16", of_60m({"--training.mixed_precision_param=bfloat16"})}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace titan
