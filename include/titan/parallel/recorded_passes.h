// What the two ways to run recorded work agree on: when a pass is recorded, how many kinds of passes are, and what
// makes two passes the same kind.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "titan/ops/parameter.h"

namespace titan {

constexpr int64_t kEagerPasses = 2;        // libraries set themselves up in the first runs, which cannot be recorded
constexpr size_t kMostRecordedPasses = 4;  // first and later microbatches, and as much again for a second shape

/// Adds the tensor's shape and type to what must agree.
void append_shape(std::vector<int64_t>& key, const at::Tensor& tensor);
/// Where the parameters lie, which must agree too. Whether a weight's gradient is written or added to is fixed in a
/// graph, so it belongs to it.
std::vector<const void*> addresses_of(std::span<Parameter* const> parameters, bool with_gradients);

}  // namespace titan
