// Which modules of a model make up which pipeline stage: the split rules of both generations of configs. Pure: from
// plain values to names; layers keep their numbers, so a parameter is called the same in every layout.
#pragma once

#include <optional>
#include <string>
#include <vector>

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

}  // namespace titan
