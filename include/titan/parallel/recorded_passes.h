// What the two ways to run recorded work agree on: when a pass is recorded, how many kinds of passes are, and what
// makes two passes the same kind.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace titan {

constexpr int64_t kEagerPasses = 2;        // libraries set themselves up in the first runs, which cannot be recorded
constexpr size_t kMostRecordedPasses = 4;  // first and later microbatches, and as much again for a second shape

/// Adds the tensor's shape and type to what must agree.
void append_shape(std::vector<int64_t>& key, const at::Tensor& tensor);

}  // namespace titan
