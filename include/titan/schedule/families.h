// The named schedules, one entry each: how many stages a rank runs and which, the allowed numbers of microbatches, and
// the order of compute actions. docs/architecture.md lists what a new schedule needs.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/schedule/action.h"

namespace titan {

struct PipelineShape {
  int ranks = 1;
  int stages_per_rank = 1;
  int microbatches = 1;
  int stages() const { return ranks * stages_per_rank; }
};

enum class Placement {
  loop,  ///< rank r runs stages r, r + ranks, r + 2·ranks, …
  v,     ///< forth and back over the ranks: with two stages, rank r runs r and 2·ranks − 1 − r
};

int rank_of_stage(Placement placement, int ranks, int stage);
/// Ascending.
std::vector<int> stages_of_rank(Placement placement, const PipelineShape& shape, int rank);

struct ScheduleFamily {
  std::string_view name;
  Placement placement;
  int least_stages_per_rank;
  int most_stages_per_rank;
  bool splits_backward;  ///< has I and W actions, so weight gradients must be deferred
  bool (*microbatches_fit)(const PipelineShape& shape);
  std::string_view microbatch_rule;  ///< for messages: "needs at least as many microbatches as ranks"
  std::vector<Action> (*order)(const PipelineShape& shape, int rank);
};

std::span<const ScheduleFamily> schedule_families();

/// Case-insensitive; nullptr if there is no such schedule.
const ScheduleFamily* find_schedule(std::string_view name);

/// Why the schedule cannot run in this shape, one sentence each with the nearest legal numbers; empty if it can.
std::vector<std::string> shape_problems(const ScheduleFamily& family, const PipelineShape& shape);

/// The legal numbers of microbatches closest to `shape.microbatches`: the largest below and the smallest above, or the
/// number itself. Empty if the shape's other numbers are wrong.
std::vector<int> nearest_microbatches(const ScheduleFamily& family, const PipelineShape& shape);

/// The compute actions of every rank. The shape must have no problems.
ScheduleTable generate(const ScheduleFamily& family, const PipelineShape& shape);

}  // namespace titan
