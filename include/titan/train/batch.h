// Converts batches of the stream to tensors on the training device. Only this file knows both: the stream has no
// tensors, and units have no tokenizer. Copies to a GPU are pinned and asynchronous.
#pragma once

#include <vector>

#include "titan/model/model.h"
#include "titan/ops/context_parallel.h"
#include "titan/stream/batch_stream.h"

namespace titan {

/// `loss_scale`: factor of the sum of token losses. Document bounds and positions are passed for `block_causal`.
/// Tokens, labels and positions contain this rank's share, document bounds all.
BatchContext to_device(const MicroBatch& batch, double loss_scale, bool block_causal, const at::Device& device,
                       const SequenceShare& share = {});

/// A whole step's microbatches. Each is scaled by the valid tokens of the global batch, so that the sum of their losses
/// is the mean over those tokens, independently of their distribution over the microbatches.
std::vector<BatchContext> to_device(const StepBatch& batch, bool block_causal, const at::Device& device,
                                    const SequenceShare& share = {});

/// Number of labels that count, in this rank's share of a step.
int64_t valid_tokens_of(const StepBatch& batch, const SequenceShare& share);

}  // namespace titan
