// What the weights of a plan cost in communication, group by group, and how a parameter lies over the ranks in torch's
// words. The plan's own sums are made of the first; `titan_train plan` shows both.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "titan/parallel/plan.h"

namespace titan {

/// What one weight group has one communicator do in a step. Bytes are those of whole tensors (docs/distributed.md).
struct WeightExchange {
  std::string_view communicator;  // of group_names
  Collective kind;
  Traffic traffic;
};

/// Of every weight group of `plan`, in its order. Gathers of a group are counted by walking one step over the slots.
std::vector<std::vector<WeightExchange>> weight_exchanges(const Plan& plan);

/// "tp Shard(0), fsdp StridedShard(0)": the axes of more than one rank that a tensor is cut or copied over. Strided:
/// cut within the pieces of an earlier cut of the same dimension. "whole" on a single rank.
std::string layout_words(const TensorLayout& layout);

}  // namespace titan
