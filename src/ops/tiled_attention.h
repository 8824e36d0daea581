// The CPU's attention over tensors: every document and head of a batch is a task of its own, taken by whichever thread
// is free, with the same bits for any number of threads. Query, key and value are read where they lie.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "titan/ops/attention.h"

namespace titan {

/// query [B, T, Hq, d], key and value [B, T, Hk, d], fp32 or bf16; without documents each sample is one →
/// output [B, T, Hq, d] and the log-sum-exp, fp32 [B, Hq, T].
std::array<at::Tensor, 2> tiled_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                          const std::vector<DocumentStarts>& documents);

/// → gradients of query, key and value.
std::array<at::Tensor, 3> tiled_attention_backward(const at::Tensor& d_output, const at::Tensor& query,
                                                   const at::Tensor& key, const at::Tensor& value,
                                                   const at::Tensor& output, const at::Tensor& log_sum_exp,
                                                   const std::vector<DocumentStarts>& documents);

}  // namespace titan
