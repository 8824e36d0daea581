// One dense attention call on whichever of LibTorch's CUDA kernels the dtype has; layouts are theirs, [B, H, T, d].
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

#include "titan/ops/attention.h"
#include "titan/ops/context_parallel.h"

namespace titan {

/// What a forward call leaves for its backward. `extra` holds the random state some CUDA kernels insist on.
struct DenseAttention {
  at::Tensor output;       // [B, Hq, T, d]
  at::Tensor log_sum_exp;  // fp32, of the shape below
  std::array<at::Tensor, 2> extra;
};

/// `preferred`, where it takes such queries.
AttentionKernel kernel_for(const at::Tensor& query, AttentionKernel preferred);

/// `preferred`, or for documents, whose lengths are ever new and may be 1, one without plans for each shape.
AttentionKernel preferred_for(bool documents, AttentionKernel preferred);

/// Of a kernel's log-sum-exp: cuDNN's is [B, Hq, T, 1], the efficient kernel's rows are filled up, the flash kernel's
/// are as they are.
std::vector<int64_t> log_sum_exp_shape(AttentionKernel kernel, int64_t samples, int64_t heads, int64_t queries);

/// What stands in `extra` where no forward call left it: the state of a dropout that there is not.
std::array<at::Tensor, 2> no_random_state(const at::Tensor& query);

/// `causal`: as many keys as queries; else every query sees every key.
DenseAttention dense_attention(AttentionKernel kernel, const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, bool causal);

/// → gradients of query, key and value in their layouts.
std::array<at::Tensor, 3> dense_attention_backward(AttentionKernel kernel, const at::Tensor& d_output,
                                                   const at::Tensor& query, const at::Tensor& key,
                                                   const at::Tensor& value, const DenseAttention& forward, bool causal);

/// Block by block, tensors as in ring attention, [B, T, H, d]: merges what the queries see in further keys into `sums`.
void merge_dense_attention(AttentionKernel preferred, const AttentionSums& sums, const at::Tensor& query,
                           const at::Tensor& key, const at::Tensor& value, const std::vector<AttentionBlock>& blocks);

/// Adds these blocks' share to `gradients` (fp32), given the output and log-sum-exp over all keys.
void add_dense_gradients(AttentionKernel preferred, const AttentionGradients& gradients, const at::Tensor& d_output,
                         const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const at::Tensor& output, const at::Tensor& log_sum_exp,
                         const std::vector<AttentionBlock>& blocks);

}  // namespace titan
