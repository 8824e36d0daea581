// Matrix products on the fastest library for the tensors' device. On the CPU fp32 products go to oneDNN through ATen's
// own operator, because LibTorch's BLAS reaches half of the peak on AMD cores. Everything else is at::mm.
#pragma once

#include <ATen/core/Tensor.h>

namespace titan {

/// x [N, in] · weightᵀ, weight [rows, in] → [N, rows].
at::Tensor product_with_transposed(const at::Tensor& x, const at::Tensor& weight);

/// The same for generation. On the CPU up to kFewRows rows (cpu_products.h) are multiplied in one pass over the weight,
/// and a row's bits do not depend on the others.
at::Tensor product_of_few_rows(const at::Tensor& x, const at::Tensor& weight);

/// dy [N, rows] · weight [rows, in] → [N, in].
at::Tensor product(const at::Tensor& dy, const at::Tensor& weight);

/// target [N, in] = dy·weight, or += with `accumulate`; one dtype for all. A GPU accumulates in place in fp32: no
/// second matrix is allocated, and a narrow sum is rounded once.
void product_into(at::Tensor& target, const at::Tensor& dy, const at::Tensor& weight, bool accumulate);

/// dyᵀ·x, dy [N, rows], x [N, in] → [rows, in]; one dtype for all.
at::Tensor transposed_product(const at::Tensor& dy, const at::Tensor& x);

/// target [rows, in] = dyᵀ·x, or += with `accumulate`; one dtype for all.
void transposed_product_into(at::Tensor& target, const at::Tensor& dy, const at::Tensor& x, bool accumulate);

/// The same with narrow operands and an fp32 target, without intermediate rounding; CUDA only.
void wide_transposed_product_into(at::Tensor& target, const at::Tensor& dy, const at::Tensor& x, bool accumulate);

}  // namespace titan
