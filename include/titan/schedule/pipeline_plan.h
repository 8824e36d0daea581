// A pipeline from plain values: which modules each stage has, who runs it, and in which order. All problems are
// reported at once, before any process talks to another. Pure, so every rank gets the same answer.
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
  std::vector<std::string> last{"norm", "output"};  ///< one unit with the loss: they stay together
};

/// How layers are dealt out when only the number of stages is given.
enum class SplitRule {
  december_2024,  ///< layers alone: L div S each; of the L mod S left over, one each to the stages from the second on
  balanced,  ///< the ends count as layers: L + first_less + last_less dealt out evenly, one more to the first stages
};

/// Something that keeps a pipeline from being built: the option at fault, by its name without the section.
struct PipelineProblem {
  std::string option;
  std::string what;    ///< without a full stop
  std::string remedy;  ///< what to do, with the nearest legal values
};

struct StageSplitRequest {
  int ranks = 1;
  int least_stages_per_rank = 1;  ///< that the schedule runs
  int most_stages_per_rank = 1;
  int default_stages_per_rank = 1;  ///< when nothing below says how many
  SplitRule rule = SplitRule::balanced;
  /// At most one of the next three. The last one has a list of module names per stage.
  std::vector<std::string> split_points{};  ///< first layer of each stage after the first: "layers.2"
  std::optional<int> layers_per_stage{};
  std::vector<std::vector<std::string>> modules{};
  int first_stage_less_layers = 1;  ///< what the first modules count for; the balanced rule and layers_per_stage use it
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
