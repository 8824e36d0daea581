// From compute actions to all that a rank does: pure functions from table to table, one concern each, and `lower`,
// which applies them in the order that a runtime wants. docs/schedules.md says what each action asks of a runtime.
#pragma once

#include "titan/schedule/action.h"
#include "titan/schedule/simulator.h"

namespace titan {

/// F and then B in place of every OVERLAP_F_B: what is sent after F leaves before B begins.
ScheduleTable split_overlapped(const ScheduleTable& table);

/// B in place of an I directly followed by the W of the same stage and microbatch: one pass over the stage, not two.
ScheduleTable merge_backward_halves(const ScheduleTable& table);

/// Adds UNSHARD and RESHARD. A rank keeps the weights of the next `most` stages that it works on; the others are
/// released first, and a gather is posted before the action ahead of which it becomes one of them, so it overlaps with
/// computing.
ScheduleTable add_weight_gathers(const ScheduleTable& table, int most = 3);

/// Adds REDUCE_GRAD after the last action that completes weight gradients of the stage.
ScheduleTable add_gradient_reductions(const ScheduleTable& table);

/// Adds a send directly after every action whose result another rank needs, and the receive where that rank is when it
/// is sent, by a simulation with `times` (all above 0; messages free). Two stages of one rank need none. The table
/// needs to be one without transfers and problems. The result cannot deadlock whatever the real times: sends and
/// receives stand in one global order, that of the simulated moments, and every wait is for something earlier in it.
ScheduleTable add_transfers(const ScheduleTable& table, const ActionTimes& times = {});

/// A BATCH in place of transfers that stand side by side.
ScheduleTable batch_transfers(const ScheduleTable& table);
/// The inverse, for PyTorch, which has no word for a batch.
ScheduleTable split_batches(const ScheduleTable& table);

struct LoweringOptions {
  bool sharded = true;           ///< weights are gathered and released
  int most_gathered_stages = 3;  ///< per rank
  bool overlapped = false;       ///< keep OVERLAP_F_B for a runtime that interleaves the two
  ActionTimes times{};           ///< that add_transfers simulates with
};

/// All of the above but merge_backward_halves, for a table of compute actions without problems.
ScheduleTable lower(const ScheduleTable& table, const LoweringOptions& options = {});

}  // namespace titan
