// Checks of schedule tables and the passes that complete them.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <tuple>

#include "shapes.h"
#include "titan/schedule/table.h"

namespace titan {
namespace {

std::string problems_of(std::string_view csv) { return listed(table_problems(table_of(csv))); }

TEST(ScheduleCheck, AValidTableHasNoProblems) {
  EXPECT_EQ(problems_of("0F0,0B0\n1F0,1I0,1W0\n"), "");
  EXPECT_EQ(problems_of("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"), "");
  EXPECT_EQ(problems_of("0UNSHARD,0F0,0B0,0RESHARD\n"), "");
  EXPECT_EQ(problems_of("0F0,0B0,0REDUCE_GRAD\n"), "");
}

TEST(ScheduleCheck, ALoopOfFourStagesWrittenByHandIsAValidTable) {
  const ScheduleTable table =
      table_of("0F0,0F1,2F0,2F1,2I0,2W0,2I1,2W1,0I0,0W0,0I1,0W1\n1F0,1F1,3F0,3F1,3I0,3W0,3I1,3W1,1I0,1W0,1I1,1W1\n");
  EXPECT_EQ(listed(table_problems(table, {2, 4, 2})), "");
}

TEST(ScheduleCheck, SaysWhatATableIsForWhenItIsForSomethingElse) {
  EXPECT_EQ(
      listed(table_problems(table_of("0F0,0B0\n1F0,1B0\n"), {4, 8, 3})),
      "the table is for 2 ranks, not 4\nthe table is for 2 stages, not 8\nthe table is for 1 microbatches, not 3");
  EXPECT_EQ(listed(table_problems({})), "the table has no actions");
}

TEST(ScheduleCheck, SendsThatFaceEachOtherAreADeadlockUnlessTheyArePostedTogether) {
  // Stages 0 and 2 on one rank, 1 and 3 on the other: after 0F1 and 1F0 each rank has something for the other.
  auto table = [](std::string_view facing0, std::string_view facing1) {
    return fmt::format(
        "0F0,0SEND_F0,0F1,{},2F0,2SEND_F0,2RECV_F1,2F1,2SEND_F1,2RECV_B0,2B0,2SEND_B0,2RECV_B1,2B1,2SEND_B1,0RECV_B0,"
        "0B0,0RECV_B1,0B1\n"
        "1RECV_F0,1F0,{},1F1,3RECV_F0,1SEND_F1,3F0,3RECV_F1,3B0,3SEND_B0,3F1,1RECV_B0,3B1,3SEND_B1,1B0,1RECV_B1,"
        "1SEND_B0,1B1,1SEND_B1\n",
        facing0, facing1);
  };
  EXPECT_EQ(problems_of(table("0SEND_F1,2RECV_F0", "1RECV_F1,1SEND_F0")), "");
  EXPECT_EQ(problems_of(table("(0SEND_F1;2RECV_F0)BATCH", "(1SEND_F0;1RECV_F1)BATCH")), "");
  EXPECT_EQ(problems_of(table("0SEND_F1,2RECV_F0", "1SEND_F0,1RECV_F1")),
            "deadlock: rank 0, action 4 (0SEND_F1) waits for 1RECV_F1\n"
            "deadlock: rank 1, action 3 (1SEND_F0) waits for 2RECV_F0");
}

TEST(ScheduleCheck, StopsAfterTwentyProblems) {
  std::string csv = "0F0,0B0";
  for (int m = 2; m < 80; ++m) csv += fmt::format(",0F{}", m);
  EXPECT_EQ(table_problems(table_of(csv)).size(), 20u);
}

TEST(ScheduleCheck, HugeNumbersCostNeitherTimeNorMemory) {
  EXPECT_EQ(table_problems(table_of("99999F99999\n")).size(), 20u);
}

/// An independent reading of the rules: can the compute actions be run at all, one by one, whatever rank is next?
bool can_run(const ScheduleTable& table, const PipelineShape& shape) {
  using Done = std::set<std::tuple<ActionKind, int, int>>;
  Done done;
  std::map<int, size_t> owner;
  std::vector<size_t> next(table.size(), 0);
  auto is_done = [&](ActionKind kind, int stage, int m) { return done.count({kind, stage, m}) > 0; };
  auto gradient = [&](int stage, int m) {
    return is_done(ActionKind::backward, stage, m) || is_done(ActionKind::input_gradient, stage, m);
  };
  auto may = [&](const Action& a) {
    const bool first = a.stage == 0, last = a.stage == shape.stages() - 1;
    if (a.kind == ActionKind::forward) return first || is_done(ActionKind::forward, a.stage - 1, a.microbatch);
    if (a.kind == ActionKind::weight_gradient) return is_done(ActionKind::input_gradient, a.stage, a.microbatch);
    return is_done(ActionKind::forward, a.stage, a.microbatch) && (last || gradient(a.stage + 1, a.microbatch));
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < table.size(); ++rank) {
      while (next[rank] < table[rank].size()) {
        const Action& action = table[rank][next[rank]];
        for (const Action& leaf : leaves(action)) {
          if (owner.insert({leaf.stage, rank}).first->second != rank) return false;
        }
        bool all = true;
        for (const Action& leaf : leaves(action)) all &= may(leaf);
        if (!all) break;
        for (const Action& leaf : leaves(action)) {
          if (!done.insert({leaf.kind, leaf.stage, leaf.microbatch}).second) return false;
        }
        ++next[rank];
        moved = true;
      }
    }
  }
  for (size_t rank = 0; rank < table.size(); ++rank) {
    if (next[rank] < table[rank].size()) return false;
  }
  for (int stage = 0; stage < shape.stages(); ++stage) {
    for (int m = 0; m < shape.microbatches; ++m) {
      const bool whole = is_done(ActionKind::backward, stage, m);
      const bool halves =
          is_done(ActionKind::input_gradient, stage, m) && is_done(ActionKind::weight_gradient, stage, m);
      const bool half = is_done(ActionKind::input_gradient, stage, m) || is_done(ActionKind::weight_gradient, stage, m);
      if (!is_done(ActionKind::forward, stage, m) || (whole ? half : !halves)) return false;
    }
  }
  return done.size() <= static_cast<size_t>(3 * shape.stages() * shape.microbatches);
}

/// One random hand at a table: what it did, and the words of the actions that it touched.
struct Break {
  ScheduleTable table;
  size_t rank = 0;
  std::vector<std::string> touched;
  std::string what;
};

Break broken(ScheduleTable table, std::mt19937& draw) {
  auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(draw); };
  Break hand;
  hand.rank = below(table.size());
  std::vector<Action>& actions = table[hand.rank];
  const size_t at = below(actions.size());
  const Action victim = actions[at];
  switch (below(6)) {
    case 0:
      hand.what = "removed";
      hand.touched = {to_string(victim)};
      actions.erase(actions.begin() + static_cast<ptrdiff_t>(at));
      break;
    case 1:
      hand.what = "doubled";
      hand.touched = {to_string(victim)};
      actions.insert(actions.begin() + static_cast<ptrdiff_t>(below(actions.size() + 1)), victim);
      break;
    case 2: {
      const size_t other = below(actions.size());
      hand.what = "swapped";
      hand.touched = {to_string(victim), to_string(actions[other])};
      std::swap(actions[at], actions[other]);
      break;
    }
    case 3: {
      hand.what = "moved to another rank";
      hand.touched = {to_string(victim)};
      actions.erase(actions.begin() + static_cast<ptrdiff_t>(at));
      std::vector<Action>& others = table[below(table.size())];
      others.insert(others.begin() + static_cast<ptrdiff_t>(below(others.size() + 1)), victim);
      break;
    }
    case 4:
      hand.what = "given another microbatch";
      actions[at].microbatch = static_cast<int>(below(8));
      hand.touched = {to_string(victim), to_string(actions[at])};
      break;
    default:
      hand.what = "given another kind";
      actions[at].kind = std::array{ActionKind::forward, ActionKind::backward, ActionKind::input_gradient,
                                    ActionKind::weight_gradient}[below(4)];
      hand.touched = {to_string(victim), to_string(actions[at])};
  }
  hand.table = std::move(table);
  return hand;
}

/// Whether a sentence names one of the actions that were touched, or another of the same stage and microbatch. Of a
/// deadlock every rank has a part; the one that was touched has to be among those that are named.
bool names(const std::vector<std::string>& problems, const Break& hand) {
  for (const std::string& problem : problems) {
    if (problem.starts_with(fmt::format("deadlock: rank {},", hand.rank))) return true;
    for (const std::string& word : hand.touched) {
      const Action action = *parse_action(word);
      for (const char* kind : {"F", "B", "I", "W"}) {
        const std::string same = fmt::format("{}{}{}", action.stage, kind, action.microbatch);
        if (problem.find(same) != std::string::npos) return true;
      }
    }
  }
  return false;
}

TEST(ScheduleCheck, TablesBrokenByARandomHandAreRejectedWithTheBrokenActionNamed) {
  std::mt19937 draw(20240611);
  int rejected = 0;
  for (const ScheduleFamily& family : schedule_families()) {
    for (int round = 0; round < 300; ++round) {
      const PipelineShape shape{2 + round % 3, family.least_stages_per_rank, 8};
      const Break hand = broken(split_overlapped(generate(family, shape)), draw);
      const std::vector<std::string> problems =
          table_problems(hand.table, {shape.ranks, shape.stages(), shape.microbatches});
      const std::string message =
          fmt::format("{}: {} {}\n{}", family.name, hand.touched[0], hand.what, listed(problems));
      ASSERT_EQ(problems.empty(), can_run(hand.table, shape)) << message;
      if (problems.empty()) continue;
      ++rejected;
      ASSERT_TRUE(names(problems, hand)) << message;
    }
  }
  EXPECT_GT(rejected, 1200);
}

TEST(ScheduleCheck, LoweredTablesThatLackAnActionOrHaveOneTwiceAreRejectedWithItNamed) {
  std::mt19937 draw(7);
  for (const ScheduleFamily& family : schedule_families()) {
    for (int round = 0; round < 100; ++round) {
      const PipelineShape shape{3, family.least_stages_per_rank, 6};
      ScheduleTable table = split_batches(lower(generate(family, shape)));
      std::vector<Action>& actions = table[draw() % 3];
      const auto at = static_cast<ptrdiff_t>(draw() % actions.size());
      const Action victim = actions[static_cast<size_t>(at)];
      if (draw() % 2 == 0) {
        actions.erase(actions.begin() + at);
      } else {
        actions.insert(actions.begin() + at, victim);
      }
      const std::vector<std::string> problems = table_problems(table);
      ASSERT_FALSE(problems.empty()) << family.name << " " << to_string(victim);
      const bool about_weights = victim.kind == ActionKind::unshard || victim.kind == ActionKind::reshard;
      bool named = about_weights && listed(problems).find("weights are") != std::string::npos;
      named |= listed(problems).find(to_string(victim)) != std::string::npos;
      EXPECT_TRUE(named) << family.name << " " << to_string(victim) << "\n" << listed(problems);
    }
  }
}

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

TEST(Lowering, AnOverlappedPairBecomesForwardThenBackward) {
  EXPECT_EQ(to_csv(split_overlapped(table_of("0F0,(0F1;1B0)OVERLAP_F_B,0B0\n"))), "0F0,0F1,1B0,0B0\n");
}

}  // namespace

}  // namespace titan
