// Blocks with two weight groups, the second sharded and replicated over other mesh axes than the first: every layout
// gives one process's numbers, sends what the plan says, and needs the memory that it says.
#include <gtest/gtest.h>

#include "comparison.h"

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

}  // namespace
}  // namespace titan
