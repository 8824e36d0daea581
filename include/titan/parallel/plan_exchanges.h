// What an instruction of a program sends, and what that makes per weight group in a step; how a parameter lies over the
// ranks in torch's words. The plan's traffic is made of the first, `titan_train plan` shows all of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "titan/parallel/program.h"

namespace titan {

/// Calls of one communicator. Bytes are those of whole tensors (docs/distributed.md).
struct Exchange {
  std::string_view communicator;  // of group_names
  Collective kind;
  Traffic traffic;
};

/// What an instruction has communicators do, in order. What units communicate within themselves (tensor and context
/// parallel) is not in it, and groups of one rank are.
std::vector<Exchange> exchanges_of(const Plan& plan, const Action& action);

/// Members of the communicator of that name (group_names).
int64_t ranks_of(const Plan& plan, std::string_view communicator);

/// What each weight group sends in a step, in the plan's order.
std::vector<std::vector<Exchange>> weight_exchanges(const Plan& plan);

/// "tp Shard(0), fsdp StridedShard(0)": the axes of more than one rank that a tensor is cut or copied over. Strided:
/// cut within the pieces of an earlier cut of the same dimension. "whole" on a single rank.
std::string layout_words(const TensorLayout& layout);

}  // namespace titan
