// Which ranks a weight group's parameters and gradients lie on: what follows from the description of a unit.
#include <gtest/gtest.h>

#include "support/layout_row.h"
#include "titan/base/error.h"
#include "titan/plan/program.h"

namespace titan {
namespace {

using enum MeshAxis;

/// The feed-forward weights of each block are a second group, sharded over `axes`.
LayoutRow mesh_row(int64_t replicate, int64_t shard, int64_t context, std::vector<MeshAxis> axes) {
  LayoutRow row;
  row.replicate = replicate, row.shard = shard, row.context = context;
  row.second = "feed_forward";
  row.second_axes = std::move(axes);
  return row;
}

const WeightGroupPlan& group_named(const Plan& plan, const std::string& name) {
  for (const WeightGroupPlan& group : plan.groups) {
    if (group.name == name) return group;
  }
  throw InvariantError("no group " + name);
}

TEST(GroupAxes, HaveCommunicatorsOfTheirOwnOnlyWhereTheirMembersDiffer) {
  const Plan plan = plan_of(mesh_row(2, 2, 2, {dp_shard}), 5);
  const GroupAxes& first = group_named(plan, "layers.0").axes;
  const GroupAxes& second = group_named(plan, "layers.0.second").axes;
  EXPECT_EQ(first.gather, "fsdp_gather");
  EXPECT_EQ(first.replicate, "dp_replicate");
  EXPECT_EQ(second.gather, "fsdp_gather:dp_shard");
  EXPECT_EQ(second.scatter, "fsdp_scatter:dp_shard");
  EXPECT_EQ(second.replicate, "dp_replicate:dp_replicate+cp");
  EXPECT_EQ(members_of(plan, second.gather), (std::vector<int64_t>{5, 7}));
  EXPECT_EQ(members_of(plan, second.replicate), (std::vector<int64_t>{0, 1, 4, 5}));
  const Plan without = plan_of(mesh_row(2, 2, 1, {dp_shard}), 3);
  EXPECT_EQ(group_named(without, "layers.0.second").axes.gather, "fsdp_gather") << "its members are the same";
}

TEST(GroupAxes, OfOneUnitNeverShareASlot) {
  const Plan plan = plan_of(mesh_row(1, 2, 2, {cp}), 0);
  for (const UnitPlan& unit : plan.units) {
    if (unit.groups.size() < 2) continue;
    const WeightGroupPlan &first = plan.groups[unit.groups[0]], &second = plan.groups[unit.groups[1]];
    EXPECT_NE(first.weight_slot, second.weight_slot) << unit.name;
    EXPECT_NE(first.gradient_slot, second.gradient_slot) << unit.name;
  }
}

/// One unit of one matrix [6, 4] whose rows are split over dp_shard, as experts would be.
ModelDescription split_model(std::vector<ParameterSpec> parameters) {
  ModelDescription model;
  model.dim = 4, model.layers = 1, model.heads = model.kv_heads = 1, model.head_dim = 4, model.vocabulary = 8;
  UnitDescription unit;
  unit.name = "layers.0";
  unit.parameters = std::move(parameters);
  unit.trace = [](UnitTrace&) {};
  model.units.push_back(std::move(unit));
  return model;
}

ParameterSpec split_matrix(const std::string& name, std::vector<AxisSplit> splits) {
  return {name, {6, 4}, {}, true, std::move(splits)};
}

PlanRequest on_mesh(const ParallelDegrees& degrees, int64_t world, int64_t rank) {
  PlanRequest request;
  request.place = {DeviceMesh(degrees, world), rank};
  request.sequence_length = 4;
  return request;
}

TEST(GroupAxes, AGroupThatIsSplitOverADataAxisIsNotSummedOverIt) {
  const PlanRequest request = on_mesh({.dp_replicate = 2, .dp_shard = 2, .cp = 2}, 8, 7);
  const Plan plan = make_plan(split_model({split_matrix("w", {{dp_shard, 0}})}), request);
  const WeightGroupPlan& group = plan.groups[0];
  EXPECT_EQ(group.axes.sharded, (std::vector{cp}));
  EXPECT_EQ(group.axes.replicated, (std::vector{dp_replicate}));
  EXPECT_EQ(group.axes.gather, "fsdp_gather:cp");
  EXPECT_EQ(group.axes.replicate, "dp_replicate");
  EXPECT_EQ(group.parameters[0].unsharded, (Box{{3, 0}, {3, 4}})) << "the second half of the experts";
  EXPECT_EQ(group.parameters[0].shard, (Box{{5, 0}, {1, 4}})) << "of which it owns the second of two uneven shards";
}

TEST(GroupAxes, ANormCountsEachShardOnce) {
  for (const std::vector<MeshAxis>& axes : {std::vector{dp_shard}, {cp}, {}, {dp_shard, cp}}) {
    std::map<std::string, int64_t> counted, whole;
    const LayoutRow row = mesh_row(2, 2, 2, axes);
    for (int64_t rank = 0; rank < row.world(); ++rank) {
      for (const WeightGroupPlan& group : plan_of(row, rank).groups) {
        for (const ParameterPlan& parameter : group.parameters) {
          whole[parameter.spec.name] = parameter.spec.numel();
          if (parameter.in_norm) counted[parameter.spec.name] += parameter.shard.numel();
        }
      }
    }
    for (const auto& [name, numel] : whole) EXPECT_EQ(counted[name], row.replicate * numel) << name;
  }
}

TEST(GroupAxes, ADegreeThatDoesNotDivideWhatIsSplitIsRefusedWithNamesAndSizes) {
  const PlanRequest request = on_mesh({.dp_shard = 4}, 4, 0);
  try {
    make_plan(split_model({split_matrix("layers.0.experts.w", {{dp_shard, 0}})}), request);
    FAIL() << "six rows are not split into four";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_config);
    EXPECT_STREQ(error.what(),
                 "dimension 0 of layers.0.experts.w [6, 4] does not divide into 4 parts over the mesh axis dp_shard; "
                 "choose another degree");
  }
}

TEST(GroupAxes, ParametersOfOneGroupAreSplitOverTheSameDataAxes) {
  const PlanRequest request = on_mesh({.dp_shard = 2}, 2, 0);
  try {
    make_plan(split_model({split_matrix("a", {{dp_shard, 0}}), split_matrix("b", {})}), request);
    FAIL() << "they are reduced together";
  } catch (const InvariantError& error) {
    EXPECT_NE(std::string(error.what()).find("b"), std::string::npos) << error.what();
  }
}

TEST(GroupAxes, WeightsAreShardedOverDataAxesOnly) {
  ModelDescription model = split_model({split_matrix("w", {})});
  model.units[0].groups = {{"", {tp}}};
  EXPECT_THROW(make_plan(model, on_mesh({.dp_shard = 1, .tp = 2}, 2, 0)), InvariantError);
}

}  // namespace
}  // namespace titan
