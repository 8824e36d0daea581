#include "titan/schedule/lowering.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "shapes.h"
#include "titan/schedule/check.h"

namespace titan {
namespace {

/// What is left when everything but computing is taken away.
ScheduleTable computing(const ScheduleTable& table) {
  ScheduleTable left;
  for (const std::vector<Action>& actions : table) {
    left.emplace_back();
    for (const Action& action : actions) {
      if (is_compute(leaves(action).front().kind)) left.back().push_back(action);
    }
  }
  return left;
}

/// Enough of the shapes to meet every case: all ranks and stages, microbatches around multiples of the ranks.
std::vector<NamedShape> some_shapes() {
  std::vector<NamedShape> some = shapes(true);
  std::erase_if(some, [](const NamedShape& one) {
    const int m = one.shape.microbatches;
    return m > 4 && m % one.shape.ranks != 0 && m != one.shape.ranks + 1 && m != 2 * one.shape.ranks + 1;
  });
  return some;
}

TEST(Lowering, IsValidForEveryLegalShapeEvenWhenEveryTransferWaitsForItsOtherSide) {
  const std::vector<NamedShape> some = some_shapes();
  ASSERT_GT(some.size(), 800u);
  for (const NamedShape& one : some) {
    const ScheduleTable table = generate(*one.family, one.shape);
    const ExpectedPipeline expected{one.shape.ranks, one.shape.stages(), one.shape.microbatches};
    for (const bool overlapped : {false, true}) {
      LoweringOptions options;
      options.overlapped = overlapped;
      const ScheduleTable lowered = lower(table, options);
      ASSERT_EQ(listed(table_problems(lowered, expected)), "") << one.text();
      ASSERT_EQ(listed(table_problems(split_batches(lowered), expected)), "") << one.text() << ", one by one";
      ASSERT_EQ(computing(lowered), overlapped ? table : split_overlapped(table)) << one.text();
      if (!one.family->splits_backward) break;
    }
  }
}

TEST(Lowering, CannotDeadlockWhateverTimesItWasLoweredWith) {
  LoweringOptions options;
  options.times.stage = {1, 0.3, 2.9};
  options.times.other_stages[1] = {0.1, 3.7, 0.2};
  for (const NamedShape& one : some_shapes()) {
    if (one.shape.microbatches > 12) continue;
    const ScheduleTable lowered = lower(generate(*one.family, one.shape), options);
    ASSERT_EQ(listed(table_problems(split_batches(lowered))), "") << one.text();
  }
}

TEST(Lowering, CostsNoTimeWhileMessagesAndGathersAreFree) {
  for (const NamedShape& one : some_shapes()) {
    const ScheduleTable table = split_overlapped(generate(*one.family, one.shape));
    const Simulation plain = simulate(table, {});
    const Simulation lowered = simulate(lower(table), {});
    ASSERT_EQ(lowered.time, plain.time) << one.text();
    for (size_t rank = 0; rank < table.size(); ++rank) {
      ASSERT_EQ(lowered.ranks[rank].peak_live, plain.ranks[rank].peak_live) << one.text();
    }
  }
}

TEST(Lowering, SendsWhatIsMadeAtOnceAndReceivesItWhereTheReceiverThenIs) {
  EXPECT_EQ(to_csv(add_transfers(generated("1F1B", 2, 1, 2))),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
}

TEST(Lowering, StagesOfOneRankHandOverWithoutATransfer) {
  const ScheduleTable table = add_transfers(generated("ZBVZeroBubble", 3, 2, 4));
  int transfers = 0;
  for (const std::vector<Action>& actions : table) {
    for (const Action& action : actions) {
      if (!is_transfer(action.kind)) continue;
      ++transfers;
      const bool at_the_turn = action.kind == ActionKind::send_forward && action.stage == 2;
      EXPECT_FALSE(at_the_turn) << to_string(action);
    }
  }
  EXPECT_EQ(transfers, 2 * 2 * 4 * (5 - 1));  // both sides, both directions, 4 microbatches, 5 edges but the turn
  EXPECT_EQ(add_transfers(generated("ZBVZeroBubble", 1, 2, 4)), generated("ZBVZeroBubble", 1, 2, 4));
}

TEST(Lowering, TransfersSideBySideBecomeOneBatchAndBack) {
  const ScheduleTable single = table_of("0F0,0SEND_F0,0RECV_B0,1SEND_B2,0B0,0SEND_B0\n");
  const ScheduleTable batched = batch_transfers(single);
  EXPECT_EQ(to_csv(batched), "0F0,(0SEND_F0;0RECV_B0;1SEND_B2)BATCH,0B0,0SEND_B0\n");
  EXPECT_EQ(split_batches(batched), single);
  EXPECT_EQ(batch_transfers(batched), batched);
}

TEST(Lowering, MessagesThatDifferentActionsWaitForAreNotReceivedTogether) {
  EXPECT_EQ(to_csv(batch_transfers(table_of("0F0,0SEND_F0,0RECV_B0,2RECV_F1,2SEND_F0,0B0,2F1\n"))),
            "0F0,(0SEND_F0;0RECV_B0)BATCH,(2RECV_F1;2SEND_F0)BATCH,0B0,2F1\n");
}

TEST(Lowering, KeepsTheWeightsOfTheNextStagesAndReleasesTheOthers) {
  EXPECT_EQ(to_csv(add_weight_gathers(table_of("0F0,1F0,2F0,2B0,1B0,0B0\n"), 2)),
            "0UNSHARD,1UNSHARD,0F0,0RESHARD,2UNSHARD,1F0,2F0,2B0,2RESHARD,0UNSHARD,1B0,1RESHARD,0B0,0RESHARD\n");
  EXPECT_EQ(to_csv(add_weight_gathers(table_of("0F0,1F0,1B0,0B0\n"), 1)),
            "0UNSHARD,0F0,0RESHARD,1UNSHARD,1F0,1B0,1RESHARD,0UNSHARD,0B0,0RESHARD\n");
}

TEST(Lowering, NeverHoldsMoreStagesThanAllowed) {
  for (int most = 1; most <= 4; ++most) {
    for (const std::vector<Action>& actions : add_weight_gathers(generated("Interleaved1F1B", 2, 4, 4), most)) {
      int held = 0;
      int peak = 0;
      for (const Action& action : actions) {
        held += (action.kind == ActionKind::unshard) - (action.kind == ActionKind::reshard);
        peak = std::max(peak, held);
      }
      EXPECT_EQ(peak, most);
      EXPECT_EQ(held, 0);
    }
  }
}

TEST(Lowering, GradientsAreReducedRightAfterTheLastMicrobatchOfTheirStage) {
  EXPECT_EQ(to_csv(add_gradient_reductions(table_of("0F0,0F1,1F0,1B0,1F1,1I1,0B0,1W1,0B1\n"))),
            "0F0,0F1,1F0,1B0,1F1,1I1,0B0,1W1,1REDUCE_GRAD,0B1,0REDUCE_GRAD\n");
  EXPECT_EQ(to_csv(add_gradient_reductions(table_of("0F0,1F0,0F1,1B0,(1F1;0B0)OVERLAP_F_B,1B1,0B1\n"))),
            "0F0,1F0,0F1,1B0,(1F1;0B0)OVERLAP_F_B,1B1,1REDUCE_GRAD,0B1,0REDUCE_GRAD\n");
}

TEST(Lowering, AnInputGradientAndItsWeightGradientSideBySideBecomeOneBackward) {
  EXPECT_EQ(to_csv(merge_backward_halves(table_of("0F0,0F1,0I0,0W0,0I1,1F0,0W1,1I0,0W0\n"))),
            "0F0,0F1,0B0,0I1,1F0,0W1,1I0,0W0\n");
}

TEST(Lowering, AnOverlappedPairBecomesForwardThenBackward) {
  EXPECT_EQ(to_csv(split_overlapped(table_of("0F0,(0F1;1B0)OVERLAP_F_B,0B0\n"))), "0F0,0F1,1B0,0B0\n");
}

}  // namespace
}  // namespace titan
