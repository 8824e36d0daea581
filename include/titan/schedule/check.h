// Whether a schedule table can run: every action once and after what it needs, every message sent, received and in
// order, weights there when they are used, and no deadlock. For tables of compute actions and lowered ones, whoever
// wrote them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "titan/schedule/action.h"

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

/// What the table has to be for; -1: whatever it is.
struct ExpectedPipeline {
  int ranks = -1;
  int stages = -1;
  int microbatches = -1;
};

/// One sentence per problem, each with rank, position (from 1) and action: "rank 1, action 5 (3I2): …". The deadlock
/// check is strict: it takes every send, receive or batch to wait until the other side has posted its own, so what
/// passes cannot hang however little a transport buffers. Stops after 20 problems.
std::vector<std::string> table_problems(const ScheduleTable& table, const ExpectedPipeline& expected = {});

}  // namespace titan
