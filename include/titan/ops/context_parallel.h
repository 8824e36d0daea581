// Context parallelism: every sequence is split over ranks. Defines the positions that each rank holds, the attention
// blocks that result, and the attention core that exchanges keys and values between ranks. The rest of the model works
// token by token and only sees a shorter sequence.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "titan/distributed/communicator.h"
#include "titan/ops/attention.h"
#include "titan/plan/sequence_split.h"

namespace titan {

/// A block of one rank's queries against another rank's keys, as positions of their local sequences, for samples
/// [sample, sample + samples).
struct AttentionBlock {
  int64_t sample = 0, samples = 1;
  int64_t query = 0, queries = 0;
  int64_t key = 0, keys = 0;
  bool causal = false;  // query i sees keys 0 … i (as many keys as queries); otherwise every query sees every key
  bool operator==(const AttentionBlock&) const = default;
};

/// The blocks in which `rank`'s queries meet keys of `source`: at most one per document and sample, none if all keys
/// are later. `documents`: where the documents of each sample start, as positions of the whole sequence; if it is
/// empty, each sample is one document.
std::vector<AttentionBlock> attention_blocks(const SequenceSplit& split, int64_t samples, int64_t length, int64_t rank,
                                             int64_t source, const std::vector<DocumentStarts>& documents);

/// Called when keys and values are sent ("send"), awaited ("wait") and used ("attend", "differentiate"), and when their
/// gradients are sent ("return"). `source`: the rank they belong to, or this rank for an all-gather. Only tests set it.
using RingTrace = std::function<void(const char* what, int64_t source)>;

/// What attention needs for context parallelism.
struct ContextParallel {
  std::shared_ptr<Communicator> communicator;
  SequenceSplit split;
  Rotation rotation = Rotation::all_gather;
  RingTrace trace = {};
};

/// Ring attention (Liu et al., "Ring Attention with Blockwise Transformers", 2023) over this rank's positions; bounds
/// are those of the whole samples. Outputs are merged by log-sum-exp in fp32. The next keys and values are transferred
/// while the current ones are used; in backward their fp32 gradients are sent with them. Key heads are never repeated
/// for communication. Without `context`: the core of a single rank.
std::unique_ptr<AttentionCore> make_attention_core(bool block_causal, std::shared_ptr<const ContextParallel> context,
                                                   AttentionKernel preferred = AttentionKernel::cudnn);

}  // namespace titan
