// Whole runs with weights and moments in bf16: they learn as runs in fp32 do, resume to the same bits, and are refused
// a checkpoint of other dtypes with what to do.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "ranks.h"
#include "support/job.h"
#include "titan/base/error.h"
#include "titan/base/log.h"
#include "titan/train/run.h"

namespace titan {
namespace {

const std::vector<std::string> kBf16{"--training.dtype=bfloat16", "--optimizer.state_dtype=bfloat16"};

std::vector<double> losses_of(const JobConfig& config, const TestFolder& folder) {
  ::testing::internal::CaptureStdout();
  {
    const Log log;
    EXPECT_EQ(train(*build_run(config, World(), log)), ExitCode::success);
  }
  ::testing::internal::GetCapturedStdout();
  return column<double>(metrics_of(folder, "loss"), "loss");
}

double mean_of_last(const std::vector<double>& values, int64_t count) {
  return std::accumulate(values.end() - count, values.end(), 0.0) / static_cast<double>(count);
}

// scripts/bench/bf16_states.sh is the long version of this; its result is in docs/benchmarks/bf16_states.md.
TEST(Bf16Runs, LearnInFiftyStepsWhatFp32StatesDo) {
  const auto run = [](const std::vector<std::string>& states) {
    const TestFolder folder;
    std::vector<std::string> words{"--training.steps=50",    "--training.local_batch_size=4",
                                   "--training.seq_len=128", "--model.override.dim=64",
                                   "--optimizer.lr=0.003",   "--lr_scheduler.warmup_steps=5"};
    words.insert(words.end(), states.begin(), states.end());
    return losses_of(small_job(folder, words), folder);
  };
  const std::vector<double> fp32 = run({}), bf16 = run(kBf16);
  ASSERT_EQ(bf16.size(), 50u);
  EXPECT_LT(mean_of_last(fp32, 10), fp32[0] - 2) << "there is something to learn";
  EXPECT_NEAR(mean_of_last(bf16, 10) / mean_of_last(fp32, 10), 1, 0.01);
  EXPECT_NE(bf16, fp32);
}

LayoutRow bf16_row(const std::string& layout) {
  LayoutRow row;
  row.layout = layout;
  row.master = row.state = ElementType::bfloat16;
  return row;
}

/// The share of elements of all weights that differ.
double different(const RankResult& a, const RankResult& b) {
  int64_t differing = 0, all = 0;
  for (const auto& [name, weight] : b.weights) {
    EXPECT_EQ(weight.scalar_type(), at::kBFloat16);
    differing += a.weights.at(name).ne(weight).sum().item<int64_t>();
    all += weight.numel();
  }
  return static_cast<double>(differing) / static_cast<double>(all);
}

/// Of ranks whose gradients are the same sums of two: what they keep must be the same, too.
TEST(Bf16Runs, EndInTheSameBitsHoweverTwoRanksShareTheWeights) {
  LayoutRow row = bf16_row("ddp2");
  row.global_batch = 4;
  row.replicate = 2;
  const RankResult copies = train_ranks(row, 3)[1];
  row.replicate = 1;
  row.shard = 2;
  for (const bool offload : {false, true}) {
    row.layout = offload ? "fsdp2_offload" : "fsdp2";
    row.offload = offload;
    const RankResult shards = train_ranks(row, 3)[1];
    EXPECT_EQ(shards.losses, copies.losses);
    EXPECT_EQ(different(shards, copies), 0) << row.layout;
  }
}

// Layouts add gradients up in other orders. An element is rounded elsewhere only where the last places of fp32 decide.
TEST(Bf16Runs, RoundInEveryLayoutAsOneProcessDoes) {
  LayoutRow alone = bf16_row("single");
  const RankResult one = train_ranks(alone, 3)[0];
  alone.rounding_seed = 1;
  EXPECT_GT(different(train_ranks(alone, 3)[0], one), 0.2) << "another seed rounds otherwise";
  std::vector<LayoutRow> rows;
  const auto add = [&](const char* layout, int64_t shard, int64_t tensor, int64_t context, int64_t pipeline) {
    LayoutRow row = bf16_row(layout);
    row.shard = shard;
    row.tensor = tensor;
    row.context = context;
    row.pipeline = pipeline;
    rows.push_back(row);
  };
  add("fsdp2xtp2", 2, 2, 1, 1);
  add("pp2", 1, 1, 1, 2);
  add("fsdp2xpp2", 2, 1, 1, 2);
  add("cp2", 1, 1, 2, 1);
  for (const LayoutRow& row : rows) {
    const std::vector<RankResult> ranks = train_ranks(row, 3);
    EXPECT_LT(different(ranks[0], one), 0.01) << row.layout;
    EXPECT_EQ(different(ranks.back(), ranks[0]), 0) << row.layout << ": all ranks agree";
    for (size_t step = 0; step < 3; ++step) {
      EXPECT_NEAR(ranks.back().losses[step] / one.losses[step], 1, 1e-4) << row.layout << ", step " << step + 1;
    }
  }
}

TEST(Bf16Runs, ChangeNoBitWithActivationsAndMomentsOffloaded) {
  for (const char* layout : {"single", "fsdp2xtp2", "pp2"}) {
    LayoutRow row = bf16_row(layout);
    row.recompute = "full";
    if (row.layout == "fsdp2xtp2") row.shard = row.tensor = 2;
    if (row.layout == "pp2") row.pipeline = 2;
    const RankResult here = train_ranks(row, 3)[0];
    row.host_activations = row.host_moments = true;
    const RankResult away = train_ranks(row, 3)[0];
    EXPECT_EQ(away.losses, here.losses) << layout;
    EXPECT_EQ(different(away, here), 0) << layout;
    EXPECT_EQ(away.activation_bytes, away.plan.activation_offload_bytes) << layout;
    EXPECT_EQ(away.moment_bytes, away.plan.optimizer_offload_bytes) << layout;
    EXPECT_GT(away.activation_bytes, 0) << layout;
    EXPECT_GT(away.moment_bytes, 0) << layout;
  }
}

TEST(Bf16Runs, ResumeFromTheirCheckpointsAndRefuseOthersWithTheReason) {
  const TestFolder folder;
  const auto words = [&](const std::string& steps, std::vector<std::string> more) {
    more.insert(more.end(), {"--checkpoint.enable", "--checkpoint.interval=2", "--training.steps=" + steps,
                             "--checkpoint.last_save_model_only=false"});
    return small_job(folder, more);
  };
  losses_of(words("2", kBf16), folder);
  for (const std::string other : {"--optimizer.state_dtype=float32", "--training.dtype=float32"}) {
    std::vector<std::string> mixed = kBf16;
    mixed.push_back(other);
    const JobConfig config = words("4", mixed);
    ::testing::internal::CaptureStdout();
    try {
      const Log log;
      train(*build_run(config, World(), log));
      ADD_FAILURE() << "it was taken";
    } catch (const Error& error) {
      const std::string option = other.substr(2, other.find('=') - 2);
      EXPECT_NE(std::string(error.what()).find(option + " = \"bfloat16\""), std::string::npos) << error.what();
      EXPECT_EQ(error.code(), ExitCode::storage) << error.what();
    }
    ::testing::internal::GetCapturedStdout();
  }
  EXPECT_EQ(losses_of(words("4", kBf16), folder).size(), 4u);
}

}  // namespace
}  // namespace titan
