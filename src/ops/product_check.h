// Checks a CPU matrix product of a library against a plain loop, once for each shape that this process computes. A
// library that gets fewer threads than it was told leaves parts of its result unwritten, without an error.
#pragma once

#include <ATen/core/Tensor.h>

namespace titan {

/// Where a product is wrong; empty: nowhere that was looked. Compares a grid of elements that holds the first and the
/// last row and column, since a missing thread leaves out a run of rows or columns. result [M, N] = left [M, K] ·
/// right [K, N], fp32, bf16 or fp64 on a CPU.
std::string wrong_product(const at::Tensor& result, const at::Tensor& left, const at::Tensor& right);

/// The same for the first product of each shape, layout and dtype, on a CPU; throws Error(silent_corruption).
void check_product_once(const at::Tensor& result, const at::Tensor& left, const at::Tensor& right);

}  // namespace titan
