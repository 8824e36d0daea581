// Batches of the data part as tensors on the training device.
// The one place where the two meet: data knows no tensors, and units know no tokenizer. Copies to a GPU are pinned and
// enqueued, never waited for.
#pragma once

#include <vector>

#include "titan/data/batch_stream.h"
#include "titan/model/model.h"
#include "titan/ops/context_parallel.h"

namespace titan {

/// Which places of every sample a rank reads; all of them by default.
struct SequenceShare {
  SequenceSplit split;
  int64_t rank = 0;

  bool whole() const { return split.ranks == 1; }
};

/// `loss_scale`: what multiplies the sum of token losses. Document bounds and positions are handed on for
/// `block_causal`. Of tokens, labels and positions the context holds this rank's share, of document bounds all.
BatchContext to_device(const MicroBatch& batch, double loss_scale, bool block_causal, const at::Device& device,
                       const SequenceShare& share = {});

/// A whole step's microbatches. Every one is scaled by the valid tokens of the global batch, so that the sum of their
/// losses is the mean over those tokens, however they are spread over the microbatches.
std::vector<BatchContext> to_device(const StepBatch& batch, bool block_causal, const at::Device& device,
                                    const SequenceShare& share = {});

/// Labels that count, of this rank's share of a step.
int64_t valid_tokens_of(const StepBatch& batch, const SequenceShare& share);

}  // namespace titan
