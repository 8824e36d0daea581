#include "titan/schedule/simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "shapes.h"
#include "titan/schedule/table.h"

namespace titan {
namespace {

constexpr double kClose = 1e-9;  // relative: sums of a few hundred doubles in different orders

ActionTimes with_stage(double forward, double input, double weight) {
  ActionTimes times;
  times.stage = {forward, input, weight};
  return times;
}

double time_of(std::string_view name, const PipelineShape& shape, const ActionTimes& times = {}) {
  return simulate(split_overlapped(generate(*find_schedule(name), shape)), times).time;
}

TEST(Simulator, OneRankComputesWithoutAPause) {
  const Simulation run = simulate(table_of("0F0,0F1,0I0,0B1,0W0\n"), with_stage(2, 3, 4));
  EXPECT_EQ(run.time, 2 + 2 + 3 + 7 + 4);
  EXPECT_EQ(run.bubble(), 0);
  EXPECT_EQ(run.idle(0), 0);
  EXPECT_EQ(run.spans[0][3].begin, 7);
  EXPECT_EQ(run.spans[0][3].end, 14);
}

TEST(Simulator, AMessageTakesItsTimeBetweenRanksAndNoneOnOne) {
  ActionTimes times;
  times.transfer = 0.5;
  EXPECT_EQ(simulate(table_of("0F0,0B0\n1F0,1B0\n"), times).time, 1 + 0.5 + 1 + 2 + 0.5 + 2);
  EXPECT_EQ(simulate(table_of("0F0,1F0,1B0,0B0\n"), times).time, 6);
  EXPECT_EQ(simulate(table_of("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"), times).time, 7);
}

TEST(Simulator, AMessageWaitsForBothSidesAndForTheOneBeforeIt) {
  ActionTimes times;
  times.transfer = 5;
  // Sent at 1 and 2; the second leaves when the first has arrived, at 6, and arrives at 11.
  const Simulation queued = simulate(table_of("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                                              "1RECV_F0,1RECV_F1,1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n"),
                                     times);
  EXPECT_EQ(queued.spans[1][3].begin, 11);
  // Here the second is received only after 1F0, which ends at 7.
  const Simulation late = simulate(table_of("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                                            "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n"),
                                   times);
  EXPECT_EQ(late.spans[1][3].begin, 12);
}

TEST(Simulator, GathersOverlapWithComputingAndTheLastReductionIsWaitedFor) {
  ActionTimes times;
  times.gather = 3;
  times.reduce = 10;
  // Gathers end at 3 and 6; the one of stage 1 runs beside 0F0.
  const Simulation run =
      simulate(table_of("0UNSHARD,1UNSHARD,0F0,1F0,1B0,1REDUCE_GRAD,0B0,0REDUCE_GRAD,1RESHARD,0RESHARD\n"), times);
  EXPECT_EQ(run.spans[0][2].begin, 3);
  EXPECT_EQ(run.spans[0][3].begin, 6);
  EXPECT_EQ(run.spans[0][6].end, 11);
  EXPECT_EQ(run.time, 29);  // 1B0 ends at 9, reduced until 19, then stage 0
}

TEST(Simulator, AStageCanHaveTimesOfItsOwn) {
  ActionTimes times;
  times.other_stages[1] = {5, 1, 1, 0.5};
  EXPECT_EQ(simulate(table_of("0F0,0B0\n1F0,1B0\n"), times).time, 1 + 5 + 0.5 + 2);
}

TEST(Simulator, AMergedPairTakesTheTimeOfBothAndDeliversAtItsEnd) {
  const Simulation run = simulate(table_of("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n"), with_stage(1, 1, 1));
  EXPECT_EQ(run.spans[0][1].begin, 4);
  EXPECT_EQ(run.spans[0][1].end, 7);
  EXPECT_EQ(run.spans[1][2].begin, 7);
}

TEST(Simulator, LiveActivationsLastFromForwardToTheWeightGradient) {
  const Simulation run = simulate(table_of("0F0,0F1,0I0,0F2,0W0,0B1,0B2\n"), {});
  EXPECT_EQ(run.ranks[0].peak_live, 3);
  EXPECT_EQ(run.ranks[0].peak_deferred, 1);
}

TEST(Simulator, PeaksOfKnownSchedulesAreTheOnesOfTheory) {
  const Simulation gpipe = simulate(generated("GPipe", 4, 1, 8), {});
  const Simulation alternating = simulate(generated("1F1B", 4, 1, 8), {});
  const Simulation looped = simulate(generated("LoopedBFS", 4, 2, 8), {});
  const Simulation v = simulate(generated("ZBVZeroBubble", 4, 2, 8), {});
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(gpipe.ranks[rank].peak_live, 8);
    EXPECT_EQ(alternating.ranks[rank].peak_live, 4 - static_cast<int>(rank));
    EXPECT_EQ(looped.ranks[rank].peak_live, 16);
    EXPECT_EQ(v.ranks[rank].peak_live, 8) << "2p chunks of half a stage: as much as p whole stages of 1F1B";
    EXPECT_EQ(gpipe.ranks[rank].peak_deferred, 0);
  }
}

TEST(ClosedForm, OfOneForwardOneBackwardIsTheKnownBubbleAndSimulated) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = p; m <= 32; ++m) {
      const double bubble = simulate(generated("1F1B", p, 1, m), with_stage(1, 1.7, 0.6)).bubble();
      ASSERT_NEAR(bubble, static_cast<double>(p - 1) / (m + p - 1), kClose) << p << " ranks, " << m << " microbatches";
    }
  }
}

TEST(ClosedForm, AnInterleavedPipelineIdlesForOneChunkPerHopWhenRanksDivideMicrobatches) {
  for (int p = 1; p <= 8; ++p) {
    for (int v = 2; v <= 4; ++v) {
      for (int m = p; m <= 32; m += p) {
        const Simulation run = simulate(generated("Interleaved1F1B", p, v, m), with_stage(1, 1.7, 0.6));
        for (int rank = 0; rank < p; ++rank) ASSERT_NEAR(run.idle(rank), (p - 1) * (1 + 2.3), kClose * run.time);
      }
    }
  }
}

TEST(ClosedForm, HoldsForEveryLegalShapeAndAnyTimesItIsGivenFor) {
  const std::array<ActionTimes, 4> all_times{with_stage(1, 1, 1), with_stage(2, 2, 2), with_stage(1, 1.7, 0.6),
                                             with_stage(1, 0.5, 0.7)};
  int compared = 0;
  for (const NamedShape& one : shapes(true)) {
    const ScheduleTable table = split_overlapped(generate(*one.family, one.shape));
    for (const ActionTimes& times : all_times) {
      const std::optional<ClosedForm> form = closed_form(*one.family, one.shape, times.stage);
      const bool equal = times.stage.forward == times.stage.input_gradient;
      ASSERT_EQ(form.has_value(), equal || !one.family->splits_backward) << one.text();
      if (!form) continue;
      const Simulation run = simulate(table, times);
      ASSERT_NEAR(run.bubble(), form->bubble, kClose) << one.text() << " " << form->formula;
      for (int rank = 0; rank < one.shape.ranks; ++rank) {
        ASSERT_NEAR(run.idle(rank), form->idle, kClose * run.time) << one.text() << " " << form->formula;
      }
      ++compared;
    }
  }
  EXPECT_GT(compared, 8000);
}

TEST(ClosedForm, ZeroBubbleSchedulesEndBeforeTheInterleavedOneOfTheSameShape) {
  int compared = 0;
  for (const NamedShape& one : shapes(true)) {
    const bool zero_bubble = one.family->name == "InterleavedZeroBubble" || one.family->name == "ZBVZeroBubble";
    if (!zero_bubble || one.shape.ranks < 2) continue;
    if (!shape_problems(*find_schedule("Interleaved1F1B"), one.shape).empty()) continue;
    ASSERT_LT(time_of(one.family->name, one.shape), time_of("Interleaved1F1B", one.shape)) << one.text();
    ++compared;
  }
  EXPECT_GT(compared, 500);
}

}  // namespace
}  // namespace titan
