// Tensors that lie one behind the other in memory, taken as one: what is done to each number by itself, or sums up in
// any order, then takes one pass for all. Private to optimize.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace titan {

/// The next tensor begins where the previous ends, in the same storage: both are parts of one block.
bool adjacent(const at::Tensor& before, const at::Tensor& after);

/// `numel` numbers from the first one of `first` on.
at::Tensor merged(const at::Tensor& first, int64_t numel);

/// The same numbers in fewer tensors, in the order of memory: one for each run of neighbours. Empty ones are left out.
std::vector<at::Tensor> joined(std::vector<at::Tensor> tensors);

}  // namespace titan
