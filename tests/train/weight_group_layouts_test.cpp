// Blocks with two weight groups, the second sharded and replicated over other mesh axes than the first: every layout
// gives one process's numbers, sends what the plan says, and needs the memory that it says.
#include <gtest/gtest.h>

#include "comparison.h"
#include "support/job.h"

namespace titan {
namespace {

using enum MeshAxis;

struct Degrees {
  int64_t pipeline = 1, replicate = 1, shard = 1, context = 1, tensor = 1;
};

/// The feed-forward weights of each block are a group of their own, sharded over `axes`.
LayoutRow two_groups(const std::string& name, const Degrees& degrees, const std::vector<MeshAxis>& axes) {
  LayoutRow row;
  row.pipeline = degrees.pipeline, row.replicate = degrees.replicate, row.shard = degrees.shard;
  row.context = degrees.context, row.tensor = degrees.tensor;
  row.layout = name;
  row.second = "feed_forward";
  row.second_axes = axes;
  return row;
}

const WeightGroupPlan& group_named(const Plan& plan, const std::string& name) {
  for (const WeightGroupPlan& group : plan.groups) {
    if (group.name == name) return group;
  }
  throw InvariantError("no group " + name);
}

int64_t planned_gradients(const Plan& plan) {
  for (const MemoryPurpose& purpose : plan.memory) {
    if (purpose.name == "gradients") return purpose.bytes;
  }
  return 0;
}

struct GroupsRow {
  LayoutRow row;
  int64_t shards, replicas;  // of the second group
};

std::vector<GroupsRow> groups_rows() {
  LayoutRow in_backward = two_groups("hsdp2x2_second_whole_in_backward", {.replicate = 2, .shard = 2}, {});
  in_backward.step_in_backward = true;
  in_backward.max_norm = 0;
  LayoutRow offloaded = two_groups("fsdp2xcp2_second_over_cp_offloaded", {.shard = 2, .context = 2}, {cp});
  offloaded.offload = true;
  LayoutRow accumulated =
      two_groups("fsdp2xcp2_second_over_dp_shard_accumulated", {.shard = 2, .context = 2}, {dp_shard});
  accumulated.accumulation = 2;
  accumulated.reshard = "always";
  accumulated.unequal_masks = true;
  accumulated.recompute = "full";
  return {{two_groups("fsdp2_second_whole", {.shard = 2}, {}), 1, 2},
          {two_groups("cp2_second_whole", {.context = 2}, {dp_shard}), 1, 2},
          {two_groups("fsdp2xcp2_second_over_dp_shard", {.shard = 2, .context = 2}, {dp_shard}), 2, 2},
          {two_groups("fsdp2xcp2_second_over_cp", {.shard = 2, .context = 2}, {cp}), 2, 2},
          {two_groups("fsdp2xcp2_second_whole", {.shard = 2, .context = 2}, {}), 1, 4},
          {two_groups("hsdp2x2_second_whole", {.replicate = 2, .shard = 2}, {}), 1, 4},
          {two_groups("hsdp2x2xcp2_second_over_cp", {.replicate = 2, .shard = 2, .context = 2}, {cp}), 2, 4},
          {two_groups("fsdp2xtp2_second_whole", {.shard = 2, .tensor = 2}, {}), 1, 2},
          {two_groups("fsdp3xtp2_second_whole", {.shard = 3, .tensor = 2}, {}), 1, 3},
          {two_groups("pp2xfsdp2_second_whole", {.pipeline = 2, .shard = 2}, {}), 1, 2},
          {in_backward, 1, 4},
          {offloaded, 2, 2},
          {accumulated, 2, 2}};
}

class WeightGroups : public ::testing::TestWithParam<GroupsRow> {};

TEST_P(WeightGroups, OfOtherAxesTrainAsOneProcess) {
  LayoutRow row = GetParam().row;
  if (row.shard == 3) row.global_batch = 12;
  const std::vector<RankResult> ranks =
      row.step_in_backward ? train_ranks(row, compared_steps()) : expect_as_one_process(row);
  for (const RankResult& rank : ranks) {
    const std::string block = rank.plan.units[rank.plan.units[0].role == UnitRole::block ? 0 : 1].name;
    const GroupAxes& first = group_named(rank.plan, block).axes;
    const GroupAxes& second = group_named(rank.plan, block + ".second").axes;
    EXPECT_EQ(first.shards, row.shard * row.context);
    EXPECT_EQ(second.shards, GetParam().shards);
    EXPECT_EQ(second.replicas, GetParam().replicas);
    EXPECT_EQ(traffic_difference(rank), "");
    if (!row.offload && !row.step_in_backward) {
      EXPECT_EQ(rank.gradient_bytes, planned_gradients(rank.plan));
    }
    if (!row.step_in_backward) continue;
    const RankResult& alone = reference_of(row);
    for (const auto& [name, weight] : alone.weights) {
      EXPECT_LE(gradient_error(rank.weights.at(name), weight), 1e-5) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, WeightGroups, ::testing::ValuesIn(groups_rows()),
                         [](const auto& info) { return info.param.row.layout; });

/// The same numbers of two runs, to the bit; the second may be the end of the first.
void expect_same_bits(const RankResult& whole, const RankResult& end) {
  const auto last = [&](const std::vector<double>& numbers) {
    return std::vector<double>(numbers.end() - static_cast<int64_t>(end.losses.size()), numbers.end());
  };
  EXPECT_EQ(end.losses, last(whole.losses));
  EXPECT_EQ(end.norms, last(whole.norms));
  for (const auto& [name, weight] : whole.weights) EXPECT_TRUE(same_bits(end.weights.at(name), weight)) << name;
}

TEST(WeightGroups, OfOtherAxesResumeOnOtherLayouts) {
  const LayoutRow saved = two_groups("fsdp2xcp2_second_over_cp", {.shard = 2, .context = 2}, {cp});
  const RankResult whole = train_ranks(saved, 4)[0];
  const TestFolder folder;
  Fault save;
  save.save_to = folder / "saved";
  const RankResult half = train_ranks(saved, 2, save)[0];
  for (const LayoutRow& other :
       {saved, two_groups("single", {}, {}), two_groups("hsdp2x2_second_whole", {.replicate = 2, .shard = 2}, {}),
        two_groups("fsdp2xcp2_second_over_dp_shard", {.shard = 2, .context = 2}, {dp_shard}),
        two_groups("fsdp3xtp2_second_whole", {.shard = 3, .tensor = 2}, {}),
        two_groups("pp2xfsdp2_second_whole", {.pipeline = 2, .shard = 2}, {})}) {
    SCOPED_TRACE(other.layout);
    // The other layout loads what was saved, to the bit, and saves it again: moments, too, then come back to the first
    // layout, which continues as if nothing had happened.
    Fault pass_on;
    pass_on.steps_before = 2;
    pass_on.load_from = folder / "saved";
    pass_on.save_to = folder / other.layout;
    for (const RankResult& rank : train_ranks(other, 0, pass_on)) {
      for (const auto& [name, weight] : half.weights) EXPECT_TRUE(same_bits(rank.weights.at(name), weight)) << name;
    }
    Fault resume;
    resume.steps_before = 2;
    resume.load_from = folder / other.layout;
    for (const RankResult& rank : train_ranks(saved, 2, resume)) expect_same_bits(whole, rank);
    // And it trains on: the numbers of the first layout, but for the order of its sums.
    if (other.shard == 3) continue;  // which does not divide the batch
    const RankResult onward = train_ranks(other, 2, resume)[0];
    for (size_t step = 0; step < 2; ++step) {
      EXPECT_NEAR(onward.losses[step], whole.losses[2 + step], kLossError * whole.losses[2 + step]);
      EXPECT_NEAR(onward.norms[step], whole.norms[2 + step], 1e-4 * whole.norms[2 + step]);
    }
  }
}

class WeightGroupSpikes : public ::testing::TestWithParam<LayoutRow> {};

TEST_P(WeightGroupSpikes, AreFoundAndSkippedAsInOneProcess) {
  constexpr int64_t kSpiked = 5;
  Fault spike;
  spike.spiked_step = kSpiked;
  const RankResult alone = train_ranks(LayoutRow(), kSpiked, spike)[0];
  const std::vector<RankResult> ranks = train_ranks(GetParam(), kSpiked, spike);
  const RankResult before = train_ranks(GetParam(), kSpiked - 1)[0];
  for (const RankResult& rank : ranks) {
    EXPECT_EQ(rank.spikes.back(), ranks[0].spikes.back()) << "all ranks judge alike, to the bit";
    EXPECT_EQ(rank.norms, ranks[0].norms);
    for (size_t step = 0; step < kSpiked; ++step) {
      EXPECT_EQ(rank.spikes[step][0], step + 1 == kSpiked ? 1 : 0) << step;
      EXPECT_NEAR(rank.norms[step], alone.norms[step], 1e-4 * alone.norms[step]) << step;
      EXPECT_NEAR(rank.losses[step], alone.losses[step], kLossError * alone.losses[step]) << step;
    }
    EXPECT_EQ(rank.norms[0], norm_of(rank.gradients));
    for (const auto& [name, weight] : before.weights) {
      EXPECT_TRUE(same_bits(rank.weights.at(name), weight)) << name << " changed in the step that is skipped";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, WeightGroupSpikes,
                         ::testing::Values(two_groups("fsdp2xcp2_second_over_cp", {.shard = 2, .context = 2}, {cp}),
                                           two_groups("hsdp2x2_second_whole", {.replicate = 2, .shard = 2}, {}),
                                           two_groups("pp2xfsdp2_second_whole", {.pipeline = 2, .shard = 2}, {}),
                                           two_groups("pp2xcp2_second_over_dp_shard", {.pipeline = 2, .context = 2},
                                                      {dp_shard})),
                         [](const auto& info) { return info.param.layout; });

}  // namespace
}  // namespace titan
