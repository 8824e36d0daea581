// Weights that are split over a data axis for good (support/experts.h): their gradients are complete without a sum over
// that axis, because each rank computes with the tokens of all of them. In every kind of layout the numbers are those
// of one process, what is sent is what the plan says, and so is the memory of gradients.
#include <gtest/gtest.h>

#include "comparison.h"
#include "support/job.h"

namespace titan {
namespace {

LayoutRow expert_row(const std::string& name, const std::function<void(LayoutRow&)>& change) {
  LayoutRow row = changed_row(name, change);
  row.experts = true;
  return row;
}

std::vector<LayoutRow> expert_rows() {
  return {expert_row("ddp2", [](LayoutRow& row) { row.replicate = 2; }),
          expert_row("fsdp2", [](LayoutRow& row) { row.shard = 2; }),
          expert_row("fsdp2_accumulated",
                     [](LayoutRow& row) {
                       row.shard = row.accumulation = 2;
                       row.reshard = "always";
                       row.unequal_masks = true;
                     }),
          expert_row("fsdp3", [](LayoutRow& row) { row.shard = 3, row.global_batch = 12; }),
          expert_row("fsdp4", [](LayoutRow& row) { row.shard = 4; }),
          expert_row("fsdp4_offloaded", [](LayoutRow& row) { row.shard = 4, row.offload = true; }),
          expert_row("hsdp2x2", [](LayoutRow& row) { row.replicate = row.shard = 2; }),
          expert_row("fsdp2xtp2", [](LayoutRow& row) { row.shard = row.tensor = 2; }),
          expert_row("pp2xfsdp2", [](LayoutRow& row) { row.pipeline = row.shard = 2; }),
          expert_row("pp2xfsdp2xtp2", [](LayoutRow& row) { row.pipeline = row.shard = row.tensor = 2; })};
}

class Experts : public ::testing::TestWithParam<LayoutRow> {};

TEST_P(Experts, TrainAsOneProcess) {
  const LayoutRow& row = GetParam();
  const RankResult& alone = reference_of(row);
  for (const RankResult& rank : expect_as_one_process(row)) {
    EXPECT_EQ(rank.strays, std::vector<std::string>()) << "each rank's gradient is its part of the whole one";
    // Adam normalises gradients, so those that are nearly zero carry their rounding errors into the weights.
    for (const auto& [name, weight] : alone.weights) {
      EXPECT_LE(gradient_error(rank.weights.at(name), weight), 1e-4) << name;
    }
    int64_t gradients = 0, experts = 0;
    for (const WeightGroupPlan& group : rank.plan.groups) {
      gradients += 4 * group.trained_shard_numel();
      if (!group.name.ends_with(".experts")) continue;
      ++experts;
      EXPECT_EQ(group.axes.shards, 1) << "nothing is gathered";
      EXPECT_EQ(group.axes.replicas, row.replicate) << "gradients are summed over replicas alone";
      for (const ParameterPlan& parameter : group.parameters) {
        EXPECT_EQ(parameter.shard.numel(), parameter.spec.numel() / row.shard) << parameter.spec.name;
      }
    }
    EXPECT_EQ(experts, row.pipeline == 1 ? row.sizes.n_layers : row.sizes.n_layers / row.pipeline);
    if (!row.offload) {
      EXPECT_EQ(rank.gradient_bytes, gradients);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, Experts, ::testing::ValuesIn(expert_rows()),
                         [](const auto& info) { return info.param.layout; });

TEST(Experts, ResumeOnOtherRanksToTheBit) {
  const LayoutRow saved = expert_row("fsdp2xtp2", [](LayoutRow& row) { row.shard = row.tensor = 2; });
  const RankResult whole = train_ranks(saved, 4)[0];
  const TestFolder folder;
  Fault save;
  save.save_to = folder / "saved";
  train_ranks(saved, 2, save);
  for (const int64_t ranks : {1, 4}) {
    Fault pass_on;
    pass_on.steps_before = 2;
    pass_on.load_from = folder / "saved";
    pass_on.save_to = folder / std::to_string(ranks);
    train_ranks(expert_row("other", [&](LayoutRow& row) { row.shard = ranks; }), 0, pass_on);
    Fault resume;
    resume.steps_before = 2;
    resume.load_from = pass_on.save_to;
    for (const RankResult& rank : train_ranks(saved, 2, resume)) {
      EXPECT_EQ(rank.losses, std::vector<double>(whole.losses.begin() + 2, whole.losses.end()));
      for (const auto& [name, weight] : whole.weights) EXPECT_TRUE(same_bits(rank.weights.at(name), weight)) << name;
    }
  }
}

}  // namespace
}  // namespace titan
