// Attention as its definition has it, in whatever precision the inputs come: a whole matrix of scores, masked.
#pragma once

#include <ATen/ATen.h>

#include <cmath>

#include "titan/ops/attention.h"

namespace titan {

/// Which document each place belongs to, [B, T]; all in document 0 without starts.
inline at::Tensor document_of(const AttentionBounds& bounds, int64_t samples, int64_t length) {
  at::Tensor document = at::zeros({samples, length}, at::kLong);
  for (size_t b = 0; b < bounds.document_starts.size(); ++b) {
    for (int64_t start : bounds.document_starts[b]) {
      document[static_cast<int64_t>(b)].narrow(0, start, length - start).add_(1);
    }
  }
  return document;
}

/// softmax(q·kᵀ/√d, masked)·v, differentiable: query head h reads key head h / (Hq / Hk).
inline at::Tensor masked_softmax(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 const AttentionBounds& bounds) {
  const int64_t length = q.size(1);
  const int64_t repeats = q.size(2) / k.size(2);
  const at::Tensor query = q.transpose(1, 2);
  const at::Tensor key = k.transpose(1, 2).repeat_interleave(repeats, 1);
  const at::Tensor value = v.transpose(1, 2).repeat_interleave(repeats, 1);
  const at::Tensor document = document_of(bounds, q.size(0), length);
  const at::Tensor same = document.unsqueeze(2).eq(document.unsqueeze(1)).unsqueeze(1);
  const at::Tensor past = at::ones({length, length}, at::kBool).tril();
  at::Tensor scores = query.matmul(key.transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3)));
  scores = scores.masked_fill(same.logical_and(past).logical_not(), -INFINITY);
  return scores.softmax(-1).matmul(value).transpose(1, 2);
}

}  // namespace titan
