// Units that hand on two tensors and report statistics (support/side_channel.h), in every kind of layout: the numbers
// of one process, statistics among them, and the plan's traffic.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "comparison.h"

namespace titan {
namespace {

LayoutRow side_row(const std::string& name, const std::function<void(LayoutRow&)>& change) {
  LayoutRow row = changed_row(name, change);
  row.side_channel = true;
  return row;
}

std::vector<LayoutRow> side_rows() {
  return {side_row("accumulated", [](LayoutRow& row) { row.accumulation = 2, row.unequal_masks = true; }),
          side_row("recomputed", [](LayoutRow& row) { row.recompute = "full"; }),
          side_row("fsdp2", [](LayoutRow& row) { row.shard = 2; }),
          side_row("tp2_recomputed", [](LayoutRow& row) { row.tensor = 2, row.recompute = "op"; }),
          side_row("cp2", [](LayoutRow& row) { row.context = 2; }),
          side_row("pp2", [](LayoutRow& row) { row.pipeline = 2; }),
          side_row("pp2_recomputed", [](LayoutRow& row) { row.pipeline = 2, row.recompute = "full"; }),
          side_row("pp2_interleaved",
                   [](LayoutRow& row) {
                     row.pipeline = row.stages_per_rank = 2;
                     row.schedule = "Interleaved1F1B";
                   }),
          side_row("pp2_v",
                   [](LayoutRow& row) {
                     row.pipeline = row.stages_per_rank = 2;
                     row.schedule = "ZBVZeroBubble";
                   }),
          side_row("pp2xfsdp2xtp2",
                   [](LayoutRow& row) { row.pipeline = row.shard = row.tensor = 2, row.recompute = "op"; }),
          side_row("graphs", [](LayoutRow& row) { row.graphs = true, row.accumulation = 4; })};
}

class SideChannel : public ::testing::TestWithParam<LayoutRow> {};

TEST_P(SideChannel, TrainsAsInOneProcess) {
  for (const RankResult& rank : expect_as_one_process(GetParam())) {
    ASSERT_EQ(rank.statistics.at(0).size(), kSideWidth + 1);
    EXPECT_EQ(rank.statistics[0].back(), 4.0 * 16 * 64) << "tokens of four blocks";
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, SideChannel, ::testing::ValuesIn(side_rows()),
                         [](const auto& info) { return info.param.layout; });

TEST(SideChannel, StatisticsWithAFactorAreMinimisedWithTheLoss) {
  const auto trained = [](double factor, int64_t steps) {
    LayoutRow row = side_row("", [](LayoutRow&) {});
    row.side_factor = factor;
    return train_ranks(row, steps)[0];
  };
  const RankResult without = trained(0, 10), with = trained(5, 10);
  double energy_without = 0, energy_with = 0;
  for (size_t i = 0; i < kSideWidth; ++i) {
    energy_without += without.statistics.back()[i];
    energy_with += with.statistics.back()[i];
  }
  EXPECT_LT(energy_with, 0.98 * energy_without);
  EXPECT_GT(with.losses.back(), without.losses.back()) << "which costs some of the loss, and is not part of it";
  EXPECT_EQ(with.losses[0], without.losses[0]);
  // The gradient is that of loss + factor · energy.
  const RankResult half = trained(2.5, 1);
  for (const auto& [name, gradient] : half.gradients) {
    EXPECT_LE(gradient_error((without.gradients.at(name) + with.gradients.at(name)) / 2, gradient), 1e-5) << name;
  }
}

/// What the ranks of a row say that train one step of a model whose blocks break their description: on all ranks, or
/// on one.
std::string problem_of(SideFault fault, const LayoutRow& row = side_row("", [](LayoutRow&) {}),
                       std::optional<int64_t> rank = std::nullopt) {
  ::testing::TestPartResultArray failures;
  {
    const ::testing::ScopedFakeTestPartResultReporter caught(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &failures);
    Fault in_blocks;
    in_blocks.side = fault;
    in_blocks.side_rank = rank;
    // The other ranks wait for the broken one.
    in_blocks.communicators = [](int64_t, MeshCommunicators& made) {
      made.set_timeout(std::chrono::milliseconds(500));
    };
    train_ranks(row, 1, in_blocks);
  }
  std::string all;
  for (int i = 0; i < failures.size(); ++i) all += failures.GetTestPartResult(i).message();
  return all;
}

TEST(SideChannel, AUnitThatReturnsSomethingElseThanItDeclaresIsNamed) {
  const std::pair<SideFault, std::vector<const char*>> cases[] = {
      {SideFault::hands_on_less, {"layers.0", "hidden.size()", "3"}},
      {SideFault::narrower, {"layers.0", "side channel", "[1024, 3]", "4"}},
      {SideFault::other_dtype, {"layers.0", "side channel", "Half", "float32"}},
      {SideFault::no_statistics, {"layers.0", "hidden.size()", "2"}},
      {SideFault::longer_statistic, {"layers.0", "side energy", "[8]", "4"}},
      {SideFault::float_statistic, {"layers.0", "side energy", "Float"}}};
  for (const auto& [fault, words] : cases) {
    const std::string problem = problem_of(fault);
    for (const char* word : words) EXPECT_NE(problem.find(word), std::string::npos) << word << " in: " << problem;
  }
}

TEST(SideChannel, AStatisticOfAnotherShapeOnOneRankIsAFaultOfThatRank) {
  // Replicas communicate first when the gradients are complete, so the rank gets to its check.
  const std::string problem =
      problem_of(SideFault::longer_statistic, side_row("ddp2", [](LayoutRow& row) { row.replicate = 2; }), 1);
  const size_t from = problem.find("rank 1: internal error");
  ASSERT_NE(from, std::string::npos) << problem;
  for (const char* word : {"layers.0", "side energy", "[8]", "4"}) {
    EXPECT_NE(problem.find(word, from), std::string::npos) << word << " in: " << problem;
  }
  EXPECT_EQ(problem.find("rank 0: internal error"), std::string::npos) << problem;
}

/// What making the plan of a changed description says.
std::string plan_problem(const std::function<void(ModelDescription&)>& change) {
  const LayoutRow row = side_row("", [](LayoutRow&) {});
  ModelDescription model = matrix_model(row);
  change(model);
  try {
    make_plan(model, matrix_plan(row, {DeviceMesh({}, 1), 0}));
  } catch (const InvariantError& error) {
    return error.what();
  }
  return {};
}

TEST(SideChannel, DescriptionsThatContradictThemselvesAreNoPlan) {
  EXPECT_EQ(plan_problem([](ModelDescription&) {}), "");
  EXPECT_NE(plan_problem([](ModelDescription& model) { model.units[1].hands_on.clear(); }), "");
  EXPECT_NE(plan_problem([](ModelDescription& model) { model.units[1].hands_on[1].width = 5; }), "")
      << "its trace has another tensor at its end";
  EXPECT_NE(plan_problem([](ModelDescription& model) { model.units[1].statistics[0].numel = 3; }), "")
      << "the other units give the same name to another statistic";
  EXPECT_NE(plan_problem([](ModelDescription& model) { model.units[1].statistics[0].loss_factor = 3; }), "");
  EXPECT_NE(plan_problem([](ModelDescription& model) { model.units.back().hands_on = {{"more", 1}}; }), "");
}

}  // namespace
}  // namespace titan
