// Muon in every kind of layout, alone and combined: one process's losses and updates, the plan's traffic and memory,
// and each matrix orthogonalised by one rank. Eight rows always, the others with TITAN_TEST_FULL.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "comparison.h"
#include "titan/job/updates.h"

namespace titan {
namespace {

/// Sets a plan's updates to Muon's, with the iteration in fp32.
void update_by_muon(PlanRequest& request) {
  request.optimizer.name = OptimizerKind::muon;
  request.optimizer.muon.dtype = ElementType::float32;
  request.updates = update_descriptions(request.optimizer);
  request.update_of = [choice = update_choice(request.optimizer)](
                          const UnitDescription& unit, const ParameterSpec& spec) { return choice(unit.role, spec); };
}

LayoutRow muon_row(const std::string& name, const std::function<void(LayoutRow&)>& change) {
  LayoutRow row = changed_row(name, change);
  row.muon = true;
  row.change = update_by_muon;
  return row;
}

std::vector<LayoutRow> muon_rows() {
  std::vector<LayoutRow> rows{
      muon_row("fsdp2", [](LayoutRow& row) { row.shard = 2; }),
      muon_row("tp2", [](LayoutRow& row) { row.tensor = 2; }),
      muon_row("pp2_tied", [](LayoutRow& row) { row.pipeline = 2, row.tied = true; }),
      muon_row("fsdp3_uneven", [](LayoutRow& row) { row.shard = 3, row.global_batch = 12; }),
      muon_row("fsdp2xtp2_tied", [](LayoutRow& row) { row.shard = row.tensor = 2, row.tied = true; }),
      muon_row("fsdp2xcp2_accumulated", [](LayoutRow& row) { row.shard = row.context = 2, row.accumulation = 2; }),
      muon_row("hsdp2x2", [](LayoutRow& row) { row.replicate = row.shard = 2; }),
      muon_row("pp2xfsdp2_two_groups", [](LayoutRow& row) {
        row.pipeline = row.shard = 2;
        row.second = "feed_forward";
      })};
  if (!std::getenv("TITAN_TEST_FULL")) return rows;
  const std::vector<LayoutRow> more{
      muon_row("ddp2", [](LayoutRow& row) { row.replicate = 2; }),
      muon_row("cp2", [](LayoutRow& row) { row.context = 2; }),
      muon_row("fsdp4", [](LayoutRow& row) { row.shard = 4; }),
      muon_row("fsdp5_uneven", [](LayoutRow& row) { row.shard = 5, row.global_batch = 20; }),
      muon_row("ddp2xtp2", [](LayoutRow& row) { row.replicate = row.tensor = 2; }),
      muon_row("ddp2xcp2", [](LayoutRow& row) { row.replicate = row.context = 2; }),
      muon_row("cp2xtp2", [](LayoutRow& row) { row.context = row.tensor = 2; }),
      muon_row("pp2xtp2", [](LayoutRow& row) { row.pipeline = row.tensor = 2; }),
      muon_row("pp2xcp2", [](LayoutRow& row) { row.pipeline = row.context = 2; }),
      muon_row("pp2xddp2", [](LayoutRow& row) { row.pipeline = row.replicate = 2; }),
      muon_row("fsdp3xtp2_uneven", [](LayoutRow& row) { row.shard = 3, row.tensor = 2, row.global_batch = 12; }),
      muon_row("fsdp2xtp4", [](LayoutRow& row) { row.shard = 2, row.tensor = 4; }),
      muon_row("fsdp2_always_recomputed",
               [](LayoutRow& row) { row.shard = 2, row.reshard = "always", row.recompute = "full"; }),
      muon_row("pp4_tied",
               [](LayoutRow& row) {
                 row.pipeline = 4;
                 row.tied = true;
               }),
      muon_row("pp2xfsdp2xtp2", [](LayoutRow& row) { row.pipeline = row.shard = row.tensor = 2; }),
      muon_row("pp2xfsdp2xcp2xtp2", [](LayoutRow& row) { row.pipeline = row.shard = row.context = row.tensor = 2; })};
  rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

class MuonLayouts : public ::testing::TestWithParam<LayoutRow> {};

TEST_P(MuonLayouts, TrainAsOneProcess) {
  // Of all updates of the first step together. Gradients of a batch that is cut differ by about 2·10⁻⁷ of their norm,
  // and the iteration's slope of a⁵ = 485 at zero carries that into directions of small singular values: about 60 times
  // as much of a square matrix of 64 rows.
  constexpr double kUpdateError = 1e-5, kMatrixError = 2e-5;
  const LayoutRow& row = GetParam();
  const RankResult& alone = reference_of(row);
  const std::vector<RankResult> ranks = expect_as_one_process(row);
  int64_t orthogonalised = 0;
  for (const RankResult& rank : ranks) {
    orthogonalised += rank.updated_matrices;
    double gap = 0, size = 0;
    for (const auto& [name, update] : alone.first_update) {
      // Adam's first step has the sign of a gradient, however small: what AdamW steps is compared elsewhere.
      if (!name.starts_with("layers.") || update.dim() != 2) continue;
      const double error = gradient_error(rank.first_update.at(name), update);
      EXPECT_LE(error, kMatrixError) << name;
      size += update.square().sum().item<double>();
      gap += std::pow(error, 2) * update.square().sum().item<double>();
    }
    EXPECT_LE(std::sqrt(gap / size), kUpdateError);
    RecordProperty("update_error", fmt::format("{:.3g}", std::sqrt(gap / size)));
    int64_t planned = 0;
    for (const WeightGroupPlan& group : rank.plan.groups) planned += rank.plan.moment_bytes(group);
    EXPECT_EQ(rank.moment_bytes_held, planned);
    for (const MemoryPurpose& purpose : rank.plan.memory) {
      if (purpose.name != "matrices being updated" || rank.matrix_bytes_held == 0) continue;
      // Temporaries of elementwise operations are not planned, and messages of a rank may be held longer by another
      // one.
      EXPECT_NEAR(static_cast<double>(rank.matrix_bytes_held), static_cast<double>(purpose.bytes), 0.3 * purpose.bytes);
    }
  }
  ASSERT_GT(alone.updated_matrices, 0) << "no matrix took the iteration";
  EXPECT_EQ(orthogonalised, alone.updated_matrices) << "each matrix is orthogonalised by one rank";
}

INSTANTIATE_TEST_SUITE_P(Layouts, MuonLayouts, ::testing::ValuesIn(muon_rows()),
                         [](const auto& info) { return info.param.layout; });

}  // namespace
}  // namespace titan
