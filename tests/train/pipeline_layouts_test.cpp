// The parity matrix's rows with a pipeline: every schedule, alone and with other kinds of parallelism, against one
// process. Bounds as in layouts_test.cpp.
#include <filesystem>

#include "comparison.h"
#include "support/checkout.h"
#include "titan/base/filesystem.h"
#include "titan/base/text.h"
#include "titan/schedule/action.h"
#include "titan/schedule/families.h"

namespace titan {
namespace {

class PipelineLayouts : public ::testing::TestWithParam<LayoutRow> {};

TEST_P(PipelineLayouts, TrainAsASingleProcessDoesAndSendWhatThePlanSays) { expect_as_one_process(GetParam()); }

std::vector<LayoutRow> rows() {
  std::vector<LayoutRow> result;
  for (const ScheduleFamily& family : schedule_families()) {
    for (int64_t ranks : {2, 4}) {
      for (int64_t microbatches : {4, 8}) {
        LayoutRow row;
        row.pipeline = ranks;
        row.layout = "pp" + std::to_string(ranks);
        row.schedule = family.name;
        row.stages_per_rank = family.most_stages_per_rank == 1 ? 1 : 2;
        row.microbatches = microbatches;
        if (ranks * row.stages_per_rank > 4) row.sizes.n_layers = 8;
        const PipelineShape shape{static_cast<int>(ranks), static_cast<int>(row.stages_per_rank),
                                  static_cast<int>(microbatches)};
        if (shape_problems(family, shape).empty()) result.push_back(row);
      }
    }
  }
  return result;
}

/// The file that torchtitan's integration tests ran, by its rule: two ranks with two stages each and 8 microbatches;
/// all forwards of the one stage, then of the other, then pairs of microbatches backward through both.
std::string custom_schedule() {
  std::string text;
  for (int rank : {0, 1}) {
    std::vector<std::string> words;
    for (int stage : {rank, rank + 2}) {
      for (int m = 0; m < 8; ++m) words.push_back(fmt::format("{}F{}", stage, m));
    }
    for (int first = 0; first < 8; first += 2) {
      for (int stage : {rank + 2, rank}) {
        for (int m : {first, first + 1}) words.push_back(fmt::format("{0}I{1},{0}W{1}", stage, m));
      }
    }
    text += join(words, ",") + "\n";
  }
  return text;
}

LayoutRow with(std::string layout, const std::function<void(LayoutRow&)>& change) {
  LayoutRow row;
  row.layout = std::move(layout);
  row.pipeline = 2;
  change(row);
  return row;
}

std::vector<LayoutRow> combined() {
  return {
      with("pp2_file",
           [](LayoutRow& row) { row.schedule = "0F0,0F1,0B0,,0B1\n,1F0,1B0,1F1,1B1\n", row.microbatches = 2; }),
      with("pp2_custom_schedule", [](LayoutRow& row) { row.schedule = custom_schedule(), row.microbatches = 8; }),
      with("pp2xfsdp2_custom_schedule",
           [](LayoutRow& row) { row.schedule = custom_schedule(), row.microbatches = 8, row.shard = 2; }),
      with("pp2xfsdp2", [](LayoutRow& row) { row.shard = 2; }),
      with("pp2xfsdp2_always", [](LayoutRow& row) { row.shard = 2, row.reshard = "always"; }),
      with("pp2xfsdp2_one_microbatch",
           [](LayoutRow& row) { row.shard = 2, row.schedule = "GPipe", row.microbatches = 1, row.sizes.n_layers = 8; }),
      with("pp2_one_microbatch_offload",
           [](LayoutRow& row) {
             row.offload = true, row.schedule = "GPipe", row.microbatches = 1, row.sizes.n_layers = 8;
           }),
      with("pp2xfsdp2_interleaved_always",
           [](LayoutRow& row) {
             row.shard = 2, row.reshard = "always";
             row.schedule = "Interleaved1F1B", row.stages_per_rank = 2;
           }),
      with("pp2xfsdp2_offload_full", [](LayoutRow& row) { row.shard = 2, row.offload = true, row.recompute = "full"; }),
      with("pp2xddp2", [](LayoutRow& row) { row.replicate = 2; }),
      with("pp2xtp2", [](LayoutRow& row) { row.tensor = 2; }),
      with("pp2xtp2_async", [](LayoutRow& row) { row.tensor = 2, row.async_tensor = true; }),
      with("pp2xfsdp2xtp2", [](LayoutRow& row) { row.shard = 2, row.tensor = 2; }),
      with("pp2xddp2xfsdp2xtp2",
           [](LayoutRow& row) { row.replicate = 2, row.shard = 2, row.tensor = 2, row.global_batch = 32; }),
      with("pp2xcp2", [](LayoutRow& row) { row.context = 2; }),
      with("pp2xcp2xtp2", [](LayoutRow& row) { row.context = 2, row.tensor = 2; }),
      with("pp2xfsdp2xcp2xtp2", [](LayoutRow& row) { row.shard = 2, row.context = 2, row.tensor = 2; }),
      with("pp2_zbv_documents",
           [](LayoutRow& row) { row.documents = true, row.schedule = "ZBVZeroBubble", row.stages_per_rank = 2; }),
      with("pp2xcp2_documents", [](LayoutRow& row) { row.documents = true, row.context = 2; }),
      with("pp2xtp2_documents_full",
           [](LayoutRow& row) { row.documents = true, row.tensor = 2, row.recompute = "full"; }),
      with("pp2_tied", [](LayoutRow& row) { row.tied = true; }),
      with("pp2xfsdp2_tied", [](LayoutRow& row) { row.tied = true, row.shard = 2; }),
      with("pp2_zbv_tied",
           [](LayoutRow& row) { row.tied = true, row.schedule = "ZBVZeroBubble", row.stages_per_rank = 2; }),
      with("pp2_accumulation_masks", [](LayoutRow& row) { row.accumulation = 2, row.unequal_masks = true; }),
      with("pp2_zero_bubble_op_masks",
           [](LayoutRow& row) {
             row.recompute = "op", row.unequal_masks = true;
             row.schedule = "InterleavedZeroBubble", row.stages_per_rank = 2;
           }),
      with("pp2_zero_bubble_full",
           [](LayoutRow& row) {
             row.recompute = "full", row.schedule = "InterleavedZeroBubble", row.stages_per_rank = 2;
           }),
  };
}

INSTANTIATE_TEST_SUITE_P(Combined, PipelineLayouts, ::testing::ValuesIn(combined()),
                         [](const auto& info) { return info.param.layout; });

INSTANTIATE_TEST_SUITE_P(Schedules, PipelineLayouts, ::testing::ValuesIn(rows()),
                         [](const auto& info) { return info.param.name(); });

TEST(PipelineLayouts, TheCustomScheduleIsTheFileOfTheFormerIntegrationTests) {
  const std::filesystem::path file = checkout() / "../shared/data/custom_schedule.csv";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << file << " is not there";
  EXPECT_EQ(parse_csv(read_file(file), "file").table, parse_csv(custom_schedule(), "own").table);
}

}  // namespace
}  // namespace titan
