// Token embedding: a row lookup whose gradient lands in the parameter's own storage. Under tensor parallelism each rank
// looks up the words it owns and the sums are dealt out by tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include "titan/ops/cross_entropy.h"
#include "titan/ops/parameter.h"
#include "titan/ops/sequence_parallel.h"
#include "titan/ops/unit_context.h"

namespace titan {

/// tokens int64 [B, T], weight [V, D] → [B·T, D], or this rank's rows of it with an `exchange` (null: none). `anchor`
/// is an empty leaf that wants a gradient: it makes backward run for a unit without a differentiable input.
at::Tensor embedding(const at::Tensor& anchor, const at::Tensor& tokens, Parameter& weight,
                     const SequenceParallel* exchange, UnitContext& context);

// The vocabulary as one rank sees it: all of it, or the words that its rows of the output matrix make logits for.

struct Vocabulary {
  Vocabulary(const Parameter& output, const TensorParallel* tensor_parallel);

  bool is_cut() const { return count < words; }
  /// Logits [rows, count] of this rank → [rows, words] of all.
  at::Tensor gather(const at::Tensor& logits) const;
  /// The columns of this rank of [rows, words].
  at::Tensor own(const at::Tensor& all) const { return all.narrow(1, first, count); }

  int64_t words;
  int64_t first;
  int64_t count;
  Communicator* communicator;  // null when the vocabulary is whole
};

/// Cross-entropy of some rows.
struct RowLosses {
  at::Tensor sum;       // Σ −log softmax(logits)[label] over valid rows, fp64 scalar
  at::Tensor gradient;  // scale · (softmax − one-hot), fp32, of the words the logits are of; undefined unless wanted
};

/// `losses` of rows by their labels: 0 where a label is ignored, NaN where it is none of the vocabulary's words.
at::Tensor losses_of_words(const at::Tensor& losses, const at::Tensor& labels, int64_t words);

/// logits fp32 [rows, count], consumed; labels int64 [rows], kIgnoredLabel takes no part. With `parallel` the logits
/// are those of this rank's words and the sums go over the ranks: two all-reduces.
RowLosses row_losses(at::Tensor logits, const at::Tensor& labels, const LossScale& scale, bool want_gradient);
RowLosses parallel_row_losses(at::Tensor&& logits, const at::Tensor& labels, const LossScale& scale, bool want_gradient,
                              const Vocabulary& vocabulary);

}  // namespace titan
