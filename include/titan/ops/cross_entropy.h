// The output projection and its cross-entropy, in chunks of rows: the full logits are never materialised. In training,
// forward computes the gradients and backward only returns them; the incoming gradient is 1 by contract. With tensor
// parallelism a rank keeps the logits of its vocabulary shard (loss parallel) or gathers them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "titan/ops/parameter.h"
#include "titan/ops/sequence_parallel.h"
#include "titan/ops/unit_context.h"

namespace titan {

/// A loss scale: a host number, or a device scalar that a captured graph reads at each replay.
struct LossScale {
  LossScale(double number = 1.0, at::Tensor place = {})  // NOLINT: implicit from a number. `place`: a scalar
      : value(number), at(std::move(place)) {}

  /// tensor (any shape) *= scale; both forms give the same bits.
  void multiply(at::Tensor& tensor) const;

  double value;
  at::Tensor at;  // fp64 scalar that replaces `value`; or undefined
};

struct CrossEntropyOptions {
  int64_t chunks = 8;         // rows are split into this many chunks; peak memory is about 2/chunks of the fp32 logits
  LossScale loss_scale = {};  // multiplies the sum of token losses: 1 / global valid tokens of the step
  bool round_weight_gradient = false;
  const TensorParallel* tensor_parallel = nullptr;
};

/// hidden [N, D] (N may span several dimensions), weight [V, D], labels int64 [B, T] of all N tokens (kIgnoredLabel is
/// skipped) → scale · Σ −log softmax(hidden·weightᵀ)[label], an fp64 scalar, equal on all ranks that share the
/// vocabulary. With tensor parallelism `hidden` holds this rank's tokens.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& labels, Parameter& weight,
                                const CrossEntropyOptions& options, UnitContext& context);

/// hidden as above → logits over the whole vocabulary, on every rank: [N, V] of all tokens, or of `rows` (int64 [n]).
at::Tensor linear_logits(const at::Tensor& hidden, const Parameter& weight, const TensorParallel* tensor_parallel,
                         const at::Tensor& rows = {});

}  // namespace titan
