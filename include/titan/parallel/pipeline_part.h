// From a schedule and a split into stages, which know names and numbers only, to what one rank of a pipeline runs.
#pragma once

#include <optional>
#include <utility>

#include "titan/model/description.h"
#include "titan/parallel/plan.h"
#include "titan/schedule/pipeline_plan.h"

namespace titan {

/// The modules of a model as a pipeline may cut them: the head's norm and product stay together.
ModelChain chain_of(const ModelDescription& model);

/// What coordinate `rank` of the axis pp runs. `pipeline` has no problems and was made for chain_of(model).
PipelinePart pipeline_part(const PipelinePlan& pipeline, const ModelDescription& model, int64_t rank);

/// The most pairs of stage and microbatch whose activations the part's actions keep at once: what a simulation of the
/// schedule says of this rank.
int64_t planned_live(const PipelinePart& part);

/// The two coordinates of the axis pp that hold the same weights (tied embeddings); none when one rank has both ends,
/// or nothing is shared.
std::optional<std::pair<int64_t, int64_t>> tied_ranks_of(const PlanRequest& request, const ModelDescription& model);

}  // namespace titan
