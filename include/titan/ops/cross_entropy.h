// The head's product and its cross-entropy, a chunk of rows at a time: all logits are never held at once. In training
// the gradients are made in forward, so backward only hands them on; the incoming gradient is 1 by contract. Under
// tensor parallelism a rank holds the logits of its part of the vocabulary (loss parallel) or gathers them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "titan/ops/parameter.h"
#include "titan/ops/sequence_parallel.h"
#include "titan/ops/unit_context.h"

namespace titan {

/// A number that is known now, or one that is on the device, where recorded work reads it anew.
struct LossScale {
  LossScale(double number = 1.0, at::Tensor place = {})  // NOLINT: a number is one
      : value(number), at(std::move(place)) {}

  /// tensor *= the number, to the same bits either way.
  void multiply(at::Tensor& tensor) const;

  double value;
  at::Tensor at;  // fp64 scalar, in place of `value`; or undefined
};

struct CrossEntropyOptions {
  int64_t chunks = 8;    // rows are cut into this many chunks; the peak is about 2/chunks of the fp32 logits
  LossScale loss_scale;  // multiplies the sum of token losses: 1 / global valid tokens of the step
  bool round_weight_gradient = false;
  const TensorParallel* tensor_parallel = nullptr;
};

/// hidden [N, D] (N possibly spread over several dimensions), weight [V, D], labels int64 [B, T] of all N tokens
/// (kIgnoredLabel takes no part) → scale · Σ −log softmax(hidden·weightᵀ)[label], an fp64 scalar, equal on all ranks
/// that share the vocabulary. With tensor parallelism `hidden` holds this rank's tokens.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& labels, Parameter& weight,
                                const CrossEntropyOptions& options, UnitContext& context);

/// hidden as above → logits [N, V] of all tokens and the whole vocabulary, on every rank.
at::Tensor linear_logits(const at::Tensor& hidden, const Parameter& weight, const TensorParallel* tensor_parallel);

}  // namespace titan
