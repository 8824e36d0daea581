// Where every parameter of the model lies, this rank's or not: what checkpoints are planned from, on all ranks alike.
// Arithmetic on a model's description; needs no model in memory.
#pragma once

#include <cstdint>
#include <vector>

#include "titan/model/description.h"
#include "titan/parallel/plan.h"

namespace titan {

struct ParameterPlace {
  ParameterSpec spec;
  TensorLayout layout;
  std::vector<int64_t> stages;  // coordinates along pp that hold it, rising; none: all of them do
};

/// Every parameter once, in the chain's order, whichever rank `request` is made for. Weights that stages share (tied
/// embeddings) have the stages of all their users.
std::vector<ParameterPlace> place_parameters(const ModelDescription& model, const PlanRequest& request);

}  // namespace titan
