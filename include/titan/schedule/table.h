// Schedule tables: whether one can run, and the passes that add to compute actions what else a rank does. Pure
// functions. docs/schedules.md says what each action asks of a runtime.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "titan/schedule/action.h"
#include "titan/schedule/simulator.h"

namespace titan {

/// What a table says of its pipeline.
struct TableFacts {
  int ranks = 0;
  int stages = 0;
  int microbatches = 0;
  std::vector<int> rank_of_stage;  ///< that computes most of the stage; -1 for a stage without any
  bool has_transfers = false;      ///< a lowered table: what crosses ranks is sent and received
  bool has_weights = false;        ///< with UNSHARD and RESHARD
  bool has_reductions = false;     ///< with REDUCE_GRAD
  bool splits_backward = false;    ///< with I and W
};

TableFacts facts_of(const ScheduleTable& table);

/// The pipeline that a table must match; -1: any.
struct ExpectedPipeline {
  int ranks = -1;
  int stages = -1;
  int microbatches = -1;
};

/// One sentence per problem, each with rank, position (from 1) and action: "rank 1, action 5 (3I2): …". The deadlock
/// check is strict: it takes every send, receive or batch to wait until the other side has posted its own, so what
/// passes cannot hang however little a transport buffers. Stops after 20 problems.
std::vector<std::string> table_problems(const ScheduleTable& table, const ExpectedPipeline& expected = {});

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
/// must have no transfers and no problems. The result cannot deadlock, for any real times: sends and receives are in
/// one global order, that of the simulated times, and every wait is for something earlier in it.
ScheduleTable add_transfers(const ScheduleTable& table, const ActionTimes& times = {});

/// A BATCH in place of neighbouring transfers.
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
