// The fused kernels, compiled for the host, on several ranks: their numbers are those of one process's plain
// operations, and in float8, where they find the amaxes that ranks agree on, no further away than one process's.
#include <gtest/gtest.h>

#include "comparison.h"

namespace titan {
namespace {

LayoutRow fused(std::string layout, const std::function<void(LayoutRow&)>& change) {
  LayoutRow row;
  row.layout = std::move(layout);
  row.fused = true;
  row.sizes.n_layers = 2;
  change(row);
  return row;
}

std::vector<LayoutRow> rows() {
  return {
      fused("alone", [](LayoutRow&) {}),
      fused("ddp2", [](LayoutRow& row) { row.replicate = 2; }),
      fused("tp2", [](LayoutRow& row) { row.tensor = 2; }),
      fused("tp2_async", [](LayoutRow& row) { row.tensor = 2, row.async_tensor = true; }),
      fused("fsdp2xtp2", [](LayoutRow& row) { row.shard = 2, row.tensor = 2; }),
      fused("cp2", [](LayoutRow& row) { row.context = 2; }),
      fused("fsdp2_graphs", [](LayoutRow& row) { row.shard = 2, row.graphs = true; }),
      fused("pp2_full", [](LayoutRow& row) { row.pipeline = 2, row.recompute = "full"; }),
  };
}

class FusedLayouts : public ::testing::TestWithParam<LayoutRow> {};

TEST_P(FusedLayouts, TrainAsASingleProcessOfPlainOperations) { expect_as_one_process(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Fp32, FusedLayouts, ::testing::ValuesIn(rows()),
                         [](const auto& info) { return info.param.layout; });

}  // namespace
}  // namespace titan
