// The head's product and its cross-entropy, a chunk of rows at a time: all logits are never held at once. In training
// the gradients are made in forward, so backward only hands them on; the incoming gradient is 1 by contract. Under
// tensor parallelism a rank holds the logits of its part of the vocabulary (loss parallel) or gathers them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "titan/ops/parameter.h"
#include "titan/ops/token_exchange.h"
#include "titan/ops/unit_context.h"

namespace titan {

struct CrossEntropyOptions {
  int64_t chunks = 8;       // rows are cut into this many chunks; the peak is about 2/chunks of the fp32 logits
  double loss_scale = 1.0;  // multiplies the sum of token losses: 1 / global valid tokens of the step
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
