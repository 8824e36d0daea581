// Computes a schedule's duration, where its ranks wait, and how many activations they keep, from the times of single
// actions; and the theoretical idle time of the named schedules. Pure: every rank gets the same numbers.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "titan/schedule/action.h"
#include "titan/schedule/families.h"

namespace titan {

/// Durations of one stage and microbatch, in any unit.
struct StageTimes {
  double forward = 1;
  double input_gradient = 1;
  double weight_gradient = 1;
  std::optional<double> backward{};  ///< duration of B; none: the sum of I and W
  /// The duration of a compute action of this stage.
  double of(ActionKind kind) const;
};

struct ActionTimes {
  StageTimes stage{};
  std::map<int, StageTimes> other_stages{};  ///< stages with different times, such as the last with its head
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
  int peak_live = 0;      ///< most (stage, microbatch) pairs between the start of F and the end of B or W
  int peak_deferred = 0;  ///< most pairs between the end of I and the end of W: deferred weight gradients
};

struct Simulation {
  double time = 0;                       ///< until the last rank has finished
  std::vector<std::vector<Span>> spans;  ///< [rank][position]; transfers and gathers: the time at which they are posted
  std::vector<RankLoad> ranks;

  double idle(int rank) const;
  /// The share of all ranks' time in which they are idle, 0 to 1.
  double bubble() const;
};

/// Simulates a table that has no problems (table.h). A rank computes one action at a time, as early as order and inputs
/// allow. Transfers, gathers and reductions take no time on the rank that posts them. A transfer begins when both sides
/// have posted it and the previous one in the same direction between the two ranks has ended; a gather or reduction
/// begins when the rank's previous one has ended. The messages that a merged transfer receives are available when all
/// have arrived. In a table without transfers every message takes its time, and none waits for another. A merged pair
/// of forward and backward runs one after the other, and both results are available at its end.
Simulation simulate(const ScheduleTable& table, const ActionTimes& times);

/// Runs the table with sends, receives and batches that block until the other side has posted its own. Returns one
/// sentence for every rank that does not finish, with what it waits for. If there is none, no transport deadlocks, not
/// even one that buffers nothing.
std::vector<std::string> deadlocks(const ScheduleTable& table);

struct ClosedForm {
  double idle = 0;      ///< of each rank, in the times' unit
  double bubble = 0;    ///< idle / (idle + computing), 0 to 1
  std::string formula;  ///< of the idle time, with the symbols p (ranks), v (stages per rank), m, F, B
};

/// The idle time by a formula. It assumes that all stages take equal times, that messages take none, and that the two
/// actions of a merged pair run one after the other (split_overlapped). Returns nothing if no formula is known; of
/// schedules that split backward, one is known only for F = I = W. Sources: docs/schedules.md.
std::optional<ClosedForm> closed_form(const ScheduleFamily& family, const PipelineShape& shape,
                                      const StageTimes& times);

}  // namespace titan
