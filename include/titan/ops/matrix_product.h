// Matrix products on whichever library is fastest where the tensors are. On the CPU fp32 products go to oneDNN through
// ATen's own operator for it: the BLAS inside LibTorch leaves half of an AMD core unused. Everything else is at::mm.
#pragma once

#include <ATen/core/Tensor.h>

namespace titan {

/// x [N, in] · weightᵀ, weight [rows, in] → [N, rows].
at::Tensor product_with_transposed(const at::Tensor& x, const at::Tensor& weight);

/// dy [N, rows] · weight [rows, in] → [N, in].
at::Tensor product(const at::Tensor& dy, const at::Tensor& weight);

/// target [N, in] = dy·weight, or += with `accumulate`; operands and target have one dtype. A GPU writes the result, or
/// adds it in fp32 to what it reads, in its place: no second matrix is made, and a narrow sum is rounded once.
void product_into(at::Tensor& target, const at::Tensor& dy, const at::Tensor& weight, bool accumulate);

/// target [rows, in] = dyᵀ·x, or += with `accumulate`; operands and target have one dtype.
void transposed_product_into(at::Tensor& target, const at::Tensor& dy, const at::Tensor& x, bool accumulate);

/// The same with operands narrower than the target's fp32, which they are not rounded on the way to; CUDA only.
void wide_transposed_product_into(at::Tensor& target, const at::Tensor& dy, const at::Tensor& x, bool accumulate);

}  // namespace titan
