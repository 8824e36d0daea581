// Treats tensors that are adjacent in memory as one, so that elementwise operations and order-independent sums take one
// pass. Private to optimize.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace titan {

/// True if `after` starts where `before` ends, in the same storage.
bool adjacent(const at::Tensor& before, const at::Tensor& after);

/// `numel` elements starting at the first one of `first`.
at::Tensor merged(const at::Tensor& first, int64_t numel);

/// The same elements in fewer tensors, in memory order: one per run of adjacent tensors. Empty tensors are dropped.
std::vector<at::Tensor> joined(std::vector<at::Tensor> tensors);

}  // namespace titan
