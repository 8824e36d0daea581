// A pipeline from plain values: which modules each stage has, who runs it, and in which order. All that can be wrong is
// said at once, before any process talks to another. Pure, so every rank gets the same answer.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "titan/schedule/action.h"
#include "titan/schedule/stage_split.h"

namespace titan {

struct PipelineRequest {
  int ranks = 1;
  std::string schedule = "1F1B";          ///< a name of families.h; with `custom`, anything
  std::optional<ScheduleTable> custom{};  ///< compute actions, read from a file
  int local_batch_size = 1;               ///< sequences that a pipeline works on in one pass
  int microbatch_size = 1;                ///< sequences of a microbatch
  ModelChain chain{};
  /// How the layers are split. Ranks and numbers of stages per rank are filled in from the schedule.
  StageSplitRequest split{};
};

struct PipelinePlan {
  ScheduleTable compute;  ///< of compute actions; `lower` makes of it what a rank runs
  std::vector<int> rank_of_stage;
  std::vector<std::vector<std::string>> stages;  ///< names of the modules of each stage
  int microbatches = 0;
  std::vector<std::string> warnings;
  std::vector<PipelineProblem> problems;  ///< all of them; the rest counts only when there are none
};

/// Ranks, batch and microbatch size are at least 1, which the config sees to.
PipelinePlan plan_pipeline(const PipelineRequest& request);

}  // namespace titan
