// Plans a pipeline from plain values: the modules of each stage, the rank that runs it, and the order. All problems are
// reported at once, before any communication. Pure, so every rank gets the same result.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "titan/schedule/action.h"

namespace titan {

/// The model as a chain of modules: `first`, layers.0 … layers.(layers-1), `last`.
struct ModelChain {
  std::vector<std::string> first{"tok_embeddings"};
  int layers = 0;
  std::vector<std::string> last{"norm", "output"};  ///< one unit with the loss: they cannot be split
};

/// How layers are assigned to stages if only the number of stages is given.
enum class SplitRule {
  december_2024,  ///< layers only: L div S each; the L mod S others go to the stages from the second on, one each
  balanced,       ///< the ends count as layers: L + first_less + last_less spread evenly, one more for the first stages
};

/// A reason why a pipeline cannot be built, with the name of the wrong option, without its section.
struct PipelineProblem {
  std::string option;
  std::string what;    ///< without a full stop
  std::string remedy;  ///< what to do, with the nearest legal values
};

struct StageSplitRequest {
  int ranks = 1;
  int least_stages_per_rank = 1;  ///< limits of the schedule
  int most_stages_per_rank = 1;
  int default_stages_per_rank = 1;  ///< if none of the fields below gives the number
  SplitRule rule = SplitRule::balanced;
  /// At most one of the next three. The last one has a list of module names per stage.
  std::vector<std::string> split_points{};  ///< first layer of each stage after the first: "layers.2"
  std::optional<int> layers_per_stage{};
  std::vector<std::vector<std::string>> modules{};
  int first_stage_less_layers = 1;  ///< layers that the first modules count for, if balanced or layers_per_stage
  int last_stage_less_layers = 1;
};

struct StageSplit {
  std::vector<std::vector<std::string>> stages;  ///< names of modules in the model's order; empty with problems
  std::vector<PipelineProblem> problems;         ///< all of them
};

StageSplit split_stages(const ModelChain& chain, const StageSplitRequest& request);

struct PipelineRequest {
  int ranks = 1;
  std::string schedule = "1F1B";          ///< a name of families.h; with `custom`, anything
  std::optional<ScheduleTable> custom{};  ///< compute actions read from a file
  int local_batch_size = 1;               ///< sequences in one pass of the pipeline
  int microbatch_size = 1;                ///< sequences of a microbatch
  ModelChain chain{};
  /// How the layers are split. Ranks and numbers of stages per rank are filled in from the schedule.
  StageSplitRequest split{};
};

struct PipelinePlan {
  ScheduleTable compute;  ///< compute actions; `lower` converts them to what a rank runs
  std::vector<int> rank_of_stage;
  std::vector<std::vector<std::string>> stages;  ///< names of the modules of each stage
  int microbatches = 0;
  std::vector<std::string> warnings;
  std::vector<PipelineProblem> problems;  ///< all of them; if there are any, the rest is invalid
};

/// Ranks, batch and microbatch size must be at least 1; the config checks this.
PipelinePlan plan_pipeline(const PipelineRequest& request);

}  // namespace titan
