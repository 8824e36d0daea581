// Degrees that the model and the lengths of its sequences allow, before anything is started.
#pragma once

#include <vector>

#include "titan/config/problem.h"
#include "titan/model/description.h"

namespace titan {

/// Tensor-parallel ranks share every head, row and column of a block, and with context-parallel ones every sequence.
/// `model` null: its sizes contradict each other, and only sequences are looked at.
std::vector<Problem> check_degrees(const ModelDescription* model, const JobConfig& config, const Origins& origins);

}  // namespace titan
