// How long a schedule takes, where its ranks wait, and how many activations they keep, from the times of single
// actions; and what theory says about the idle time of the named schedules. Pure: every rank gets the same numbers.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "titan/schedule/action.h"
#include "titan/schedule/families.h"

namespace titan {

/// Of one stage and microbatch, in any unit.
struct StageTimes {
  double forward = 1;
  double input_gradient = 1;
  double weight_gradient = 1;
  std::optional<double> backward{};  ///< of B; none: I and W together
  /// Of a compute action of this stage.
  double of(ActionKind kind) const;
};

struct ActionTimes {
  StageTimes stage{};
  std::map<int, StageTimes> other_stages{};  ///< stages with times of their own, such as the last with its head
  double transfer = 0;                       ///< one message between two ranks
  double gather = 0;                         ///< UNSHARD of one stage
  double reduce = 0;                         ///< REDUCE_GRAD of one stage
  const StageTimes& of_stage(int number) const;
};

struct Span {
  double begin = 0;
  double end = 0;
};

struct RankLoad {
  double busy = 0;        ///< computing
  int peak_live = 0;      ///< most pairs of stage and microbatch between the begin of F and the end of B or W
  int peak_deferred = 0;  ///< most of them between the end of I and the end of W: weight gradients put off
};

struct Simulation {
  double time = 0;                       ///< until the last rank is done
  std::vector<std::vector<Span>> spans;  ///< [rank][position]; a transfer's or gather's is the moment it is posted
  std::vector<RankLoad> ranks;

  double idle(int rank) const;
  /// The share of all ranks' time in which they do not compute, 0 to 1.
  double bubble() const;
};

/// Runs a table that has no problems (table.h). A rank computes one action at a time, as early as order and inputs
/// allow. Transfers, gathers and reductions take no time of the rank that posts them. A transfer begins when both sides
/// have posted it and the one before it in the same direction between the two ranks has ended; a gather or reduction
/// when the one before it on the rank has. What one merged transfer receives can be used when all of it is there. In a
/// table without transfers every message takes its time, and none waits for another. A merged pair of forward and
/// backward runs one after the other, and both results are there at its end.
Simulation simulate(const ScheduleTable& table, const ActionTimes& times);

/// One sentence for every rank that never ends, with what it waits for, if every send, receive and batch waits until
/// the other side has posted its own; empty: there is no deadlock, however little a transport buffers.
std::vector<std::string> deadlocks(const ScheduleTable& table);

struct ClosedForm {
  double idle = 0;      ///< of each rank, in the times' unit
  double bubble = 0;    ///< idle / (idle + computing), 0 to 1
  std::string formula;  ///< of the idle time, in the letters p (ranks), v (stages per rank), m, F, B
};

/// All stages equal, messages free, merged pairs run one after the other (split_overlapped). Nothing where no formula
/// is known: schedules that split backward have one for F = I = W only. Sources: docs/schedules.md.
std::optional<ClosedForm> closed_form(const ScheduleFamily& family, const PipelineShape& shape,
                                      const StageTimes& times);

}  // namespace titan
