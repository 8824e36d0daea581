// One dense attention call on any of LibTorch's CUDA kernels; layouts are theirs: [B, H, T, d].
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <vector>

#include "titan/ops/attention.h"
#include "titan/ops/context_parallel.h"

namespace titan {

/// What backward needs of a forward call. `extra` holds the random state that some CUDA kernels require.
struct DenseAttention {
  at::Tensor output;                // [B, Hq, T, d]
  at::Tensor log_sum_exp;           // fp32, of the shape below
  std::array<at::Tensor, 2> extra;  // of the shapes that LibTorch's kernel returns
};

/// Returns `preferred` if it accepts such queries [B, Hq, T, d]; otherwise the kernel that takes its place.
AttentionKernel kernel_for(const at::Tensor& query, AttentionKernel preferred);

/// Returns `preferred`, except that Flash attention takes cuDNN's place if attention stays within documents: their
/// lengths vary, and cuDNN would build a plan for each.
AttentionKernel preferred_for(bool documents, AttentionKernel preferred);

/// Shape of a kernel's log-sum-exp: [B, Hq, T], with padded rows for the efficient kernel, or [B, Hq, T, 1].
std::vector<int64_t> log_sum_exp_shape(AttentionKernel kernel, int64_t samples, int64_t heads, int64_t queries,
                                       bool has_column);

/// True if the kernel's log-sum-exp has a last dimension of 1: cuDNN's in LibTorch 2.11, and not in later ones. The
/// first answer for cuDNN takes a small call on `device`.
bool log_sum_exp_has_column(AttentionKernel kernel, const at::Device& device);

/// Stands for `extra` in a backward call without a forward call: the random state of a dropout that is not used, on the
/// device of `query` (any shape).
std::array<at::Tensor, 2> no_random_state(const at::Tensor& query);

/// query [B, Hq, T, d], key and value [B, Hk, T', d]. If `causal`, T' is T; otherwise every query sees every key.
DenseAttention dense_attention(AttentionKernel kernel, const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, bool causal);

/// Returns the gradients of query, key and value, in the layouts of these. `d_output` [B, Hq, T, d].
std::array<at::Tensor, 3> dense_attention_backward(AttentionKernel kernel, const at::Tensor& d_output,
                                                   const at::Tensor& query, const at::Tensor& key,
                                                   const at::Tensor& value, const DenseAttention& forward, bool causal);

/// A step of ring attention: merges the attention over further keys, block by block, into `sums`. Tensors are
/// [B, T, H, d].
void merge_dense_attention(AttentionKernel preferred, const AttentionSums& sums, const at::Tensor& query,
                           const at::Tensor& key, const at::Tensor& value, const std::vector<AttentionBlock>& blocks);

/// Adds what these blocks contribute to `gradients` (fp32), given the output and the log-sum-exp over all keys:
/// `d_output`, query and output [B, T, Hq, d], key and value [B, T', Hk, d], `log_sum_exp` [B, Hq, T].
void add_dense_gradients(AttentionKernel preferred, const AttentionGradients& gradients, const at::Tensor& d_output,
                         const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const at::Tensor& output, const at::Tensor& log_sum_exp,
                         const std::vector<AttentionBlock>& blocks);

}  // namespace titan
