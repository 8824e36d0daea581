// Context parallelism: ranks that share every sequence. Which places of it each rank holds, which blocks of attention
// that makes, and the attention core in which keys and values travel around the ranks. Everything else in a model works
// on one token at a time and sees only a shorter sequence.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "titan/distributed/communicator.h"
#include "titan/ops/attention.h"

namespace titan {

/// How the places of a sequence are dealt out.
enum class LoadBalance {
  head_tail,  // of 2n chunks rank r holds the r-th and the r-th from the end: all ranks have the same work
  none,       // rank r holds the r-th of n chunks: the last has the most work
};

/// How keys and values come around.
enum class Rotation {
  all_gather,  // those of all ranks at once
  all_to_all,  // one rank's at a time, handed on from rank to rank
};

/// Places [begin, end) of a sequence.
struct PlaceRange {
  int64_t begin;
  int64_t end;
  bool operator==(const PlaceRange&) const = default;
};

struct SequenceSplit {
  int64_t ranks = 1;
  LoadBalance balance = LoadBalance::head_tail;

  /// Divides every legal length.
  int64_t chunks() const { return balance == LoadBalance::head_tail && ranks > 1 ? 2 * ranks : ranks; }
  /// What `rank` holds of a sequence of `length`, in its order, which is ascending.
  std::vector<PlaceRange> places(int64_t rank, int64_t length) const;
};

/// Some queries of one rank against some keys of another, in places of their local sequences, for samples
/// [sample, sample + samples).
struct AttentionBlock {
  int64_t sample = 0, samples = 1;
  int64_t query = 0, queries = 0;
  int64_t key = 0, keys = 0;
  bool causal = false;  // query i sees keys 0 … i of as many as there are queries; else every query sees every key
  bool operator==(const AttentionBlock&) const = default;
};

/// The blocks that queries of `rank` make with keys of `source`: at most one per document and sample, none where every
/// key comes later. `documents` (of all samples, in places of the whole sequence) may be empty: one document each.
std::vector<AttentionBlock> attention_blocks(const SequenceSplit& split, int64_t samples, int64_t length, int64_t rank,
                                             int64_t source, const std::vector<DocumentStarts>& documents);

/// Called when keys and values are sent on ("send"), awaited ("wait"), computed with ("attend", "differentiate"), and
/// when their gradients travel ("return"); `source` is the rank they belong to, or for an all-gather the own. For
/// tests.
using RingTrace = std::function<void(const char* what, int64_t source)>;

/// What attention needs to share sequences with other ranks.
struct ContextParallel {
  std::shared_ptr<Communicator> communicator;
  SequenceSplit split;
  Rotation rotation = Rotation::all_gather;
  RingTrace trace = {};
};

/// Ring attention (Liu et al., "Ring Attention with Blockwise Transformers", 2023): query, key and value of the rank's
/// places; bounds are those of the whole samples. Outputs are merged by their log-sum-exp in fp32, the next keys and
/// values travel while the present ones are used, and in backward their gradients travel with them in fp32. Key heads
/// are never repeated on the wire. Without `context` it is the core of one rank.
std::unique_ptr<AttentionCore> make_attention_core(bool block_causal, std::shared_ptr<const ContextParallel> context,
                                                   AttentionKernel preferred = AttentionKernel::cudnn);

}  // namespace titan
