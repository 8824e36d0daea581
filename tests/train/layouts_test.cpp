// The gradient parity matrix: every layout against a single process, row by row of layouts.tsv.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "comparison.h"

namespace titan {
namespace {

/// What is on the device when shards live on the host.
int64_t slot_bytes(const Plan& plan) {
  int64_t total = 0;
  for (const auto* slots : {&plan.weight_slots, &plan.gradient_slots, &plan.message_slots}) {
    total += std::accumulate(slots->begin(), slots->end(), int64_t{0});
  }
  return total;
}

/// What the memory table says for these purposes together.
int64_t planned_bytes(const Plan& plan, const std::set<std::string>& purposes) {
  int64_t bytes = 0;
  for (const MemoryPurpose& purpose : plan.memory) {
    if (purposes.contains(purpose.name)) bytes += purpose.bytes;
  }
  return bytes;
}

void expect_planned_peaks(const RankResult& rank) {
  EXPECT_EQ(rank.device_peak, slot_bytes(rank.plan) + planned_bytes(rank.plan, {"padding of uneven shards"}));
  EXPECT_EQ(rank.host_peak, planned_bytes(rank.plan, {"parameters", "parameters, compute copy", "gradients"}));
}

class Layouts : public ::testing::TestWithParam<LayoutRow> {};

TEST_P(Layouts, TrainAsASingleProcessDoesAndSendWhatThePlanSays) {
  const LayoutRow& row = GetParam();
  const std::vector<RankResult> ranks = expect_as_one_process(row);
  ASSERT_FALSE(HasFailure());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_EQ(ranks[rank].to_device_bytes, ranks[rank].plan.to_device_bytes);
    EXPECT_EQ(ranks[rank].to_host_bytes, ranks[rank].plan.to_host_bytes);
    if (row.offload) expect_planned_peaks(ranks[rank]);
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, Layouts, ::testing::ValuesIn(layout_rows()),
                         [](const auto& info) { return info.param.name(); });

struct OffloadCase {
  const char* layout;
  const char* reshard = "default";
  int64_t accumulation = 1;
  bool sockets = false, tied = false, narrow = false;
  int64_t pipeline = 1;
};

TEST(Layouts, WhoseWeightsLiveOnTheHostHoldTheBytesThatArePlannedAndNotOneMore) {
  const std::vector<OffloadCase> cases{{"fsdp3"},
                                       {"fsdp3", "always", 1, /*sockets=*/true},
                                       {"fsdp3", "never", 4},
                                       {"fsdp3", "default", 1, /*sockets=*/false, /*tied=*/true},
                                       {"fsdp3", "always", 4, /*sockets=*/true, /*tied=*/true, /*narrow=*/true},
                                       {"fsdp3", "always", 1, false, false, false, /*pipeline=*/2},
                                       {"fsdp4", "always", 1, false, true, true},
                                       {"hsdp2x2", "default", 1, true, false, true}};
  for (const OffloadCase& offload : cases) {
    LayoutRow row = row_named(offload.layout);
    row.offload = true;
    row.reshard = offload.reshard;
    row.accumulation = offload.accumulation;
    row.sockets = offload.sockets;
    row.tied = offload.tied;
    row.pipeline = offload.pipeline;
    if (offload.narrow) row.compute = row.reduce = ElementType::bfloat16;
    SCOPED_TRACE(row.name());
    for (const RankResult& rank : train_ranks(row, 3)) expect_planned_peaks(rank);
  }
}

TEST(Layouts, GiveTheSameInitialWeightsBitForBit) {
  for (const bool tied : {false, true}) {
    LayoutRow alone;
    alone.tied = tied;
    const RankResult single = train_ranks(alone, 0)[0];
    for (LayoutRow row : layout_rows()) {
      if (row.name() != row.layout) continue;
      row.tied = tied;
      for (const RankResult& rank : train_ranks(row, 0)) {
        for (const auto& [name, weight] : single.weights) {
          EXPECT_TRUE(same_bits(rank.weights.at(name), weight)) << row.name() << " " << name;
        }
      }
    }
  }
}

TEST(Layouts, SteppingInBackwardTrainsAsSteppingAfterItAndSendsWhatThePlanSays) {
  LayoutRow alone;
  alone.max_norm = 0;
  const RankResult after = train_ranks(alone, 5)[0];
  for (const auto& [layout, offload] : {std::pair("ddp2", false),
                                        {"fsdp3", false},
                                        {"fsdp3", true},
                                        {"tp2", false},
                                        {"tp2", true},
                                        {"hsdp2x2xtp2", false}}) {
    LayoutRow row = row_named(layout);
    row.global_batch = alone.global_batch = row.shard == 3 ? 12 : 16;
    row.max_norm = 0;
    row.offload = offload;
    row.step_in_backward = true;
    const RankResult reference = row.shard == 3 ? train_ranks(alone, 5)[0] : after;
    for (const RankResult& rank : train_ranks(row, 5)) {
      ASSERT_EQ(rank.losses.size(), 5u) << layout;
      for (size_t step = 0; step < 5; ++step) {
        EXPECT_NEAR(rank.losses[step] / reference.losses[step], 1, kLossError) << layout;
      }
      EXPECT_EQ(traffic_difference(rank), "") << layout;
    }
  }
}

TEST(Layouts, ARequestToStopOfOneRankReachesAllInTheSameStepAndDoesNotGrow) {
  for (const bool step_in_backward : {false, true}) {
    for (const char* layout : {"ddp2", "tp2", "hsdp2x2xtp2"}) {
      LayoutRow row = row_named(layout);
      row.step_in_backward = step_in_backward;
      Fault last_rank_stops;
      last_rank_stops.stopping_rank = row.world() - 1;
      for (const RankResult& rank : train_ranks(row, 3, last_rank_stops)) {
        EXPECT_EQ(rank.stop_requests, (std::vector<double>{0, 1, 0})) << layout << " " << step_in_backward;
      }
    }
  }
}

TEST(Layouts, WithoutLossParallelTheLogitsAreGathered) {
  LayoutRow row = row_named("tp4");
  row.loss_parallel = false;
  const std::vector<RankResult> ranks = train_ranks(row, compared_steps());
  EXPECT_EQ(difference(ranks[3], reference_of(row)), "");
  EXPECT_EQ(traffic_difference(ranks[3]), "");
  row.compute = ElementType::bfloat16;
  EXPECT_EQ(traffic_difference(train_ranks(row, 2)[3]), "") << "in the dtype they are computed in";
}

}  // namespace
}  // namespace titan
