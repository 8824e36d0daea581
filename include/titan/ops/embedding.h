// Token embedding: a row lookup whose gradient is accumulated in the parameter's own storage. With tensor parallelism
// each rank looks up its vocabulary shard, and the sum is reduce-scattered by tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include "titan/ops/cross_entropy.h"
#include "titan/ops/parameter.h"
#include "titan/ops/sequence_parallel.h"
#include "titan/ops/unit_context.h"

namespace titan {

/// tokens int64 [B, T], weight [V, D] → [B·T, D], or this rank's rows of it with an `exchange` (may be null). `anchor`
/// [0] is an empty leaf that requires a gradient, so that backward runs for a unit without a differentiable input.
at::Tensor embedding(const at::Tensor& anchor, const at::Tensor& tokens, Parameter& weight,
                     const SequenceParallel* exchange, UnitContext& context);

// This rank's part of the vocabulary: all of it, or the shard for which its rows of the output matrix produce logits.

struct Vocabulary {
  Vocabulary(const Parameter& output, const TensorParallel* tensor_parallel);

  /// This rank's logits [rows, count] → all logits [rows, size].
  at::Tensor gather(const at::Tensor& logits) const;
  /// This rank's columns of [rows, size].
  at::Tensor own(const at::Tensor& all) const { return all.narrow(1, first, count); }

  int64_t size;
  int64_t first;
  int64_t count;
  Communicator* communicator;  // null when the vocabulary is whole
};

/// Cross-entropy of a chunk of rows.
struct RowLosses {
  at::Tensor sum;       // Σ −log softmax(logits)[label] over valid rows, fp64 scalar
  at::Tensor gradient;  // [rows, count], fp32: scale · (softmax − one-hot) of `logits`; undefined unless requested
};

/// `losses` [rows] masked by `labels` [rows]: 0 where a label is ignored, NaN where it is outside the vocabulary.
at::Tensor masked_losses(const at::Tensor& losses, const at::Tensor& labels, int64_t vocab_size);

/// logits fp32 [rows, count], consumed; labels int64 [rows], kIgnoredLabel is skipped. With `parallel` the logits are
/// this rank's vocabulary shard and sums are reduced over ranks: two all-reduces.
RowLosses row_losses(at::Tensor logits, const at::Tensor& labels, const LossScale& scale, bool want_gradient);
RowLosses parallel_row_losses(at::Tensor&& logits, const at::Tensor& labels, const LossScale& scale, bool want_gradient,
                              const Vocabulary& vocabulary);

}  // namespace titan
