// An optimizer that needs matrices whole (support/whole_matrices.h), in every kind of layout: one process's numbers,
// the plan's traffic, and each matrix updated by one rank.
#include <gtest/gtest.h>

#include "comparison.h"

namespace titan {
namespace {

LayoutRow whole_row(const std::string& name, const std::function<void(LayoutRow&)>& change) {
  LayoutRow row = changed_row(name, change);
  row.whole_matrices = true;
  return row;
}

std::vector<LayoutRow> whole_rows() {
  return {whole_row("ddp2", [](LayoutRow& row) { row.replicate = 2; }),
          whole_row("fsdp2", [](LayoutRow& row) { row.shard = 2; }),
          whole_row("fsdp3_uneven", [](LayoutRow& row) { row.shard = 3, row.global_batch = 12; }),
          whole_row("fsdp2_accumulated", [](LayoutRow& row) { row.shard = 2, row.accumulation = 2; }),
          whole_row("tp2", [](LayoutRow& row) { row.tensor = 2; }),
          whole_row("fsdp2xtp2", [](LayoutRow& row) { row.shard = row.tensor = 2; }),
          whole_row("fsdp3xtp2_uneven", [](LayoutRow& row) { row.shard = 3, row.tensor = 2, row.global_batch = 12; }),
          whole_row("fsdp2xcp2", [](LayoutRow& row) { row.shard = row.context = 2; }),
          whole_row("hsdp2x2", [](LayoutRow& row) { row.replicate = row.shard = 2; }),
          whole_row("pp2xfsdp2", [](LayoutRow& row) { row.pipeline = row.shard = 2; }),
          whole_row("hsdp2x2_two_groups", [](LayoutRow& row) {
            row.replicate = row.shard = 2;
            row.second = "feed_forward";
          })};
}

class WholeMatrices : public ::testing::TestWithParam<LayoutRow> {};

TEST_P(WholeMatrices, AreUpdatedAsInOneProcess) {
  const LayoutRow& row = GetParam();
  const RankResult& alone = reference_of(row);
  const std::vector<RankResult> ranks = expect_as_one_process(row);
  int64_t updated = 0;
  for (const RankResult& rank : ranks) {
    updated += rank.updated_matrices;
    for (const auto& [name, weight] : alone.weights) {
      EXPECT_LE(gradient_error(rank.weights.at(name), weight), 1e-5) << name;
    }
    int64_t planned = 0;
    for (const WeightGroupPlan& group : rank.plan.groups) planned += rank.plan.moment_bytes(group);
    EXPECT_EQ(rank.moment_bytes_held, planned);
  }
  ASSERT_GT(alone.updated_matrices, 0);
  EXPECT_EQ(updated, alone.updated_matrices) << "each by one rank of all";
}

INSTANTIATE_TEST_SUITE_P(Layouts, WholeMatrices, ::testing::ValuesIn(whole_rows()),
                         [](const auto& info) { return info.param.layout; });

TEST(WholeMatrices, AreSharedOutByTheirCost) {
  LayoutRow row = whole_row("", [](LayoutRow& row) { row.shard = 4; });
  std::map<int64_t, double> work;
  double all = 0, largest = 0;
  for (int64_t rank = 0; rank < 4; ++rank) {
    const Plan plan = plan_of(row, rank);
    for (const WeightGroupPlan& group : plan.groups) work[rank] += matrix_bytes(plan, group).operations;
    all += work[rank];
    largest = std::max(largest, work[rank]);
  }
  EXPECT_LE(largest, 1.2 * all / 4);
}

TEST(WholeMatrices, AreRefusedWhereGradientsLeaveBeforeAllAreThere) {
  const auto problem = [](const std::function<void(LayoutRow&)>& change) -> std::string {
    try {
      plan_of(whole_row("", change), 0);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_config);
      return error.what();
    }
    return {};
  };
  EXPECT_EQ(problem([](LayoutRow& row) { row.shard = 2, row.step_in_backward = true; }),
            "an optimizer that updates whole matrices does not work with optimizer.early_step_in_backward: set it to "
            "false");
  EXPECT_EQ(problem([](LayoutRow& row) { row.shard = 2, row.offload = true; }),
            "an optimizer that updates whole matrices does not work with training.enable_cpu_offload: set it to false");
}

TEST(WholeMatrices, HaveTwoDimensions) {
  const LayoutRow row = whole_row("", [](LayoutRow& row) { row.shard = 2; });
  PlanRequest request = matrix_plan(row, {DeviceMesh({.dp_shard = 2}, 2), 0});
  request.update_of = [](const UnitDescription&, const ParameterSpec&) -> size_t { return 1; };
  try {
    make_plan(matrix_model(row), request);
    FAIL() << "norms are vectors";
  } catch (const InvariantError& error) {
    EXPECT_EQ(static_cast<int>(error.code()), 70);
    for (const char* shown : {"a whole matrix has two dimensions", "layers.0.attention_norm.weight", "[64]"}) {
      EXPECT_NE(std::string(error.what()).find(shown), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace titan
