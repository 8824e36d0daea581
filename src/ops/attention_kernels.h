// One dense causal attention call on whichever of LibTorch's CUDA kernels the dtype has; layouts are theirs, [B, H, T,
// d].
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

namespace titan {

/// What a forward call leaves for its backward. `extra` holds the random state some CUDA kernels insist on.
struct DenseAttention {
  at::Tensor output;       // [B, Hq, T, d]
  at::Tensor log_sum_exp;  // fp32 [B, Hq, T] or the kernel's padded form
  std::array<at::Tensor, 2> extra;
};

DenseAttention dense_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value);

/// → gradients of query, key and value in their layouts.
std::array<at::Tensor, 3> dense_attention_backward(const at::Tensor& d_output, const at::Tensor& query,
                                                   const at::Tensor& key, const at::Tensor& value,
                                                   const DenseAttention& forward);

}  // namespace titan
