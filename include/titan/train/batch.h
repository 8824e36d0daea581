// Batches of the data part as tensors on the training device.
// The one place where the two meet: data knows no tensors, and units know no tokenizer. Copies to a GPU are pinned and
// enqueued, never waited for.
#pragma once

#include <vector>

#include "titan/data/batch_stream.h"
#include "titan/model/unit.h"

namespace titan {

/// `loss_scale`: what multiplies the sum of token losses. Document bounds and positions are handed on for
/// `block_causal`.
BatchContext to_device(const MicroBatch& batch, double loss_scale, bool block_causal, const at::Device& device);

/// A whole step's microbatches. Every one is scaled by the valid tokens of the global batch, so that the sum of their
/// losses is the mean over those tokens, however they are spread over the microbatches.
std::vector<BatchContext> to_device(const StepBatch& batch, bool block_causal, const at::Device& device);

}  // namespace titan
