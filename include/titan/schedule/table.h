// Schedule tables: checks, and passes that add a rank's other actions to its compute actions. Pure functions.
// docs/schedules.md defines what a runtime must do for each action.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "titan/schedule/action.h"
#include "titan/schedule/simulator.h"

namespace titan {

/// The pipeline that a table describes.
struct TableFacts {
  int ranks = 0;
  int stages = 0;
  int microbatches = 0;
  std::vector<int> rank_of_stage;  ///< the rank that computes most of the stage; -1 for a stage without actions
  bool has_transfers = false;      ///< a lowered table: messages between ranks are sent and received
  bool has_weights = false;        ///< has UNSHARD and RESHARD
  bool has_reductions = false;     ///< has REDUCE_GRAD
  bool splits_backward = false;    ///< has I and W
};

TableFacts facts_of(const ScheduleTable& table);

/// The pipeline that a table must match; -1: any.
struct ExpectedPipeline {
  int ranks = -1;
  int stages = -1;
  int microbatches = -1;
};

/// One sentence per problem, each with rank, position (from 1) and action: "rank 1, action 5 (3I2): …". The deadlock
/// check is strict: it assumes that every send, receive or batch blocks until the other side has posted its own, so a
/// table that passes cannot hang with any transport. Stops after 20 problems.
std::vector<std::string> table_problems(const ScheduleTable& table, const ExpectedPipeline& expected = {});

/// Replaces every OVERLAP_F_B by F and then B: messages of F are sent before B begins.
ScheduleTable split_overlapped(const ScheduleTable& table);

/// Adds UNSHARD and RESHARD. A rank keeps the weights of the next `most` stages that it works on and releases the
/// others first. A gather is posted before the action at which its stage becomes one of them, so it overlaps with
/// compute.
ScheduleTable add_weight_gathers(const ScheduleTable& table, int most = 3);

/// Adds REDUCE_GRAD after the last action that completes weight gradients of the stage.
ScheduleTable add_gradient_reductions(const ScheduleTable& table);

/// Adds a send directly after every action whose result another rank needs, and the receive at the position that the
/// receiver has reached at that time in a simulation with `times` (all above 0; messages free). Two stages of one rank
/// need none. The table must have no transfers and no problems. The result cannot deadlock, for any real times: sends
/// and receives are in one global order, that of the simulated times, and every wait is for something earlier in it.
ScheduleTable add_transfers(const ScheduleTable& table, const ActionTimes& times = {});

/// Replaces adjacent transfers by a BATCH.
ScheduleTable batch_transfers(const ScheduleTable& table);
/// The inverse, for PyTorch, which has no such word.
ScheduleTable split_batches(const ScheduleTable& table);

struct LoweringOptions {
  bool sharded = true;           ///< weights are gathered and released
  int most_gathered_stages = 3;  ///< per rank
  bool overlapped = false;       ///< keep OVERLAP_F_B for a runtime that interleaves the two
  ActionTimes times{};           ///< the times of add_transfers' simulation
};

/// Lowers a table of compute actions without problems: adds gathers, reductions and transfers, as `options` say.
ScheduleTable lower(const ScheduleTable& table, const LoweringOptions& options = {});

}  // namespace titan
