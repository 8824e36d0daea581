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
#include "titan/ops/unit_trace.h"

namespace titan {

/// How the positions of a sequence are split over ranks.
enum class LoadBalance {
  head_tail,  // 2n chunks; rank r holds chunks r and 2n−1−r, so all ranks have equal work
  none,       // n chunks; rank r holds chunk r, so the last rank has the most work
};

/// How keys and values are exchanged.
enum class Rotation {
  all_gather,  // all ranks' at once
  all_to_all,  // one rank's at a time, passed around the ring
};

/// Positions [begin, end) of a sequence.
struct PlaceRange {
  int64_t begin;
  int64_t end;
  bool operator==(const PlaceRange&) const = default;
};

struct SequenceSplit {
  int64_t ranks = 1;
  LoadBalance balance = LoadBalance::head_tail;

  /// Number of chunks; every legal sequence length is a multiple of it.
  int64_t chunks() const { return balance == LoadBalance::head_tail && ranks > 1 ? 2 * ranks : ranks; }
  /// The positions of a sequence of `length` that `rank` holds, in local order, which is ascending.
  std::vector<PlaceRange> places(int64_t rank, int64_t length) const;
};

/// A block of one rank's queries against another rank's keys, as positions of their local sequences, for samples
/// [sample, sample + samples).
struct AttentionBlock {
  int64_t sample = 0, samples = 1;
  int64_t query = 0, queries = 0;
  int64_t key = 0, keys = 0;
  bool causal = false;  // query i sees keys 0 … i (as many keys as queries); otherwise every query sees every key
  bool operator==(const AttentionBlock&) const = default;
};

/// The blocks of `rank`'s queries with keys of `source`: at most one per document and sample, none if all keys are
/// later. `documents` (of all samples, as positions of the whole sequence) may be empty: one document each.
std::vector<AttentionBlock> attention_blocks(const SequenceSplit& split, int64_t samples, int64_t length, int64_t rank,
                                             int64_t source, const std::vector<DocumentStarts>& documents);

/// Called when keys and values are sent ("send"), awaited ("wait") and used ("attend", "differentiate"), and when their
/// gradients are sent ("return"). `source`: the rank they belong to, or this rank for an all-gather. For tests.
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

/// The trace of attention over this rank's heads: [samples, length, heads, head_dim]. Ring attention if the trace has
/// context-parallel ranks.
TracedTensor trace_attention(UnitTrace& trace, TracedTensor query, TracedTensor key, TracedTensor value,
                             int64_t head_dim);

}  // namespace titan
