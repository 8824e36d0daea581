// Treats tensors that are adjacent in memory as one, so that elementwise operations and order-independent sums take one
// pass. Private to optimize.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace titan {

/// True if `after` (any shape) starts where `before` (any shape) ends, in the same storage.
bool adjacent(const at::Tensor& before, const at::Tensor& after);

/// [numel]: the elements that follow each other in memory from the first one of `first` (any shape) on.
at::Tensor merged(const at::Tensor& first, int64_t numel);

/// The elements of `tensors` (any shapes) in fewer tensors [n], in memory order: one for each run of adjacent tensors.
/// Empty tensors are dropped.
std::vector<at::Tensor> joined(std::vector<at::Tensor> tensors);

}  // namespace titan
