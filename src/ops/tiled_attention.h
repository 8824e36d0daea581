// CPU attention over tensors: every head of every block is a task that any thread can run; the bits do not depend on
// the thread count. Inputs are read in place, at any strides.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "titan/ops/attention.h"
#include "titan/ops/context_parallel.h"

namespace titan {

/// query [B, T, Hq, d], key and value [B, T, Hk, d], fp32 or bf16; every query is in one of `blocks` → output [B, T,
/// Hq, d] and the log-sum-exp, fp32 [B, Hq, T].
std::array<at::Tensor, 2> tiled_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                          const std::vector<AttentionBlock>& blocks);

/// Gradients of query, key and value; every query and every key is in one of `blocks`. `d_output` and `output`
/// [B, T, Hq, d], `log_sum_exp` [B, Hq, T].
std::array<at::Tensor, 3> tiled_attention_backward(const at::Tensor& d_output, const at::Tensor& query,
                                                   const at::Tensor& key, const at::Tensor& value,
                                                   const at::Tensor& output, const at::Tensor& log_sum_exp,
                                                   const std::vector<AttentionBlock>& blocks);

/// Merges the attention over further keys into `sums`; no query and no key is in two of `blocks`. Shapes are those of
/// tiled_attention.
void merge_tiled_attention(const AttentionSums& sums, const at::Tensor& query, const at::Tensor& key,
                           const at::Tensor& value, const std::vector<AttentionBlock>& blocks);

/// Adds the blocks' share to `gradients` (fp32), given the output and log-sum-exp over all keys. Shapes are those of
/// tiled_attention_backward.
void add_tiled_gradients(const AttentionGradients& gradients, const at::Tensor& d_output, const at::Tensor& query,
                         const at::Tensor& key, const at::Tensor& value, const at::Tensor& output,
                         const at::Tensor& log_sum_exp, const std::vector<AttentionBlock>& blocks);

}  // namespace titan
