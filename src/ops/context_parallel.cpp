#include "titan/ops/context_parallel.h"

#include <ATen/ATen.h>
#include <algorithm>
#include <limits>

#include "attention_kernels.h"
#include "tensor_checks.h"
#include "tiled_attention.h"
#include "titan/base/error.h"
#include "titan/ops/differentiable.h"

namespace titan {
namespace {

/// [2, …]: keys then values, or their gradients, sent as one message.
using KeyValue = at::Tensor;

struct Ring {
  explicit Ring(const ContextParallel& context)
      : communicator(*context.communicator),
        trace(context.trace),
        ranks(communicator.size()),
        rank(communicator.rank()) {}

  int64_t next() const { return (rank + 1) % ranks; }
  int64_t previous() const { return (rank + ranks - 1) % ranks; }
  /// The rank whose keys and values are used in step `step`.
  int64_t source(int64_t step) const { return (rank + ranks - step) % ranks; }
  void note(const char* what, int64_t of) const {
    if (trace) trace(what, of);
  }

  Communicator& communicator;
  const RingTrace& trace;
  int64_t ranks, rank;
};

/// Iterates over the keys and values of all ranks, this rank's first. The next transfer is in flight while the current
/// step computes.
class KeyValueRotation {
 public:
  KeyValueRotation(const Ring& ring, Rotation rotation, const at::Tensor& key, const at::Tensor& value)
      : ring_(ring), rotation_(rotation), present_(at::stack({key, value})) {
    if (rotation == Rotation::all_gather) {
      ring.note("send", ring.rank);
      std::vector<int64_t> shape = present_.sizes().vec();
      shape.insert(shape.begin(), ring.ranks);
      gathered_ = at::empty(shape, present_.options());
      pending_ = ring.communicator.all_gather({gathered_}, {present_});
    }
  }

  /// Steps in order, from 0.
  const KeyValue& at_step(int64_t step) {
    if (rotation_ == Rotation::all_gather) {
      if (step == 0) return present_;
      if (step == 1) finish_receive(step);
      return present_ = gathered_[ring_.source(step)];
    }
    if (step > 0) {
      finish_receive(step);
      present_ = incoming_;
    }
    if (step + 1 < ring_.ranks) {
      ring_.note("send", ring_.source(step));
      incoming_ = at::empty_like(present_);
      pending_ = ring_.communicator.permute({incoming_}, {present_}, ring_.next(), ring_.previous());
    }
    return present_;
  }

 private:
  void finish_receive(int64_t step) {
    ring_.note("wait", ring_.source(step));
    pending_->wait();
  }

  const Ring& ring_;
  Rotation rotation_;
  KeyValue present_, incoming_;
  at::Tensor gathered_;
  Pending pending_;
};

/// The gradients of one rank's keys and values; every rank adds its share as they pass around the ring. The share is
/// computed while the partial sum of the preceding ranks is received.
class TravellingGradients {
 public:
  explicit TravellingGradients(const Ring& ring) : ring_(ring) {}

  void add_and_send(int64_t step, KeyValue share) {
    if (step > 0) {
      pending_->wait();
      share.add_(incoming_);
    } else {
      incoming_ = at::empty_like(share);
    }
    ring_.note("return", ring_.source(step));
    pending_ = ring_.communicator.permute({incoming_}, {share}, ring_.next(), ring_.previous());
    sent_ = std::move(share);
  }
  /// The gradients of this rank's own keys and values, after the last hop.
  KeyValue received() {
    pending_->wait();
    return incoming_;
  }

 private:
  const Ring& ring_;
  KeyValue incoming_, sent_;
  Pending pending_;
};

/// Blocks of this rank's queries with every other rank's keys, by source.
using BlocksBySource = std::vector<std::vector<AttentionBlock>>;

struct RingBackward : BackwardNode {
  std::shared_ptr<const ContextParallel> context;
  std::shared_ptr<const BlocksBySource> blocks;
  AttentionKernel preferred = AttentionKernel::cudnn;
  at::Tensor query, key, value, output, log_sum_exp;

  torch::autograd::variable_list backward(torch::autograd::variable_list gradients) override {
    const Ring ring(*context);
    const auto add = [&](const auto&... arguments) {
      query.is_cpu() ? add_tiled_gradients(arguments...) : add_dense_gradients(preferred, arguments...);
    };
    at::Tensor d_query = at::zeros(query.sizes(), query.options().dtype(at::kFloat));
    KeyValueRotation rotation(ring, context->rotation, key, value);
    TravellingGradients travelling(ring);
    for (int64_t step = 0; step < ring.ranks; ++step) {
      const KeyValue& present = rotation.at_step(step);
      const int64_t source = ring.source(step);
      ring.note("differentiate", source);
      KeyValue share = at::zeros(present.sizes(), present.options().dtype(at::kFloat));
      add(AttentionGradients{d_query, share[0], share[1]}, gradients[0], query, present[0], present[1], output,
          log_sum_exp, (*blocks)[static_cast<size_t>(source)]);
      travelling.add_and_send(step, std::move(share));
    }
    const KeyValue own = travelling.received();
    const at::ScalarType type = query.scalar_type();
    query.reset(), key.reset(), value.reset(), output.reset(), log_sum_exp.reset();
    return {d_query.to(type), own[0].to(type), own[1].to(type)};
  }
};

class RingCore : public AttentionCore {
 public:
  RingCore(std::shared_ptr<const ContextParallel> context, bool block_causal, AttentionKernel preferred)
      : context_(std::move(context)), block_causal_(block_causal), preferred_(preferred) {}

  at::Tensor forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const AttentionBounds& bounds, UnitContext& context) const override {
    check_attention(query, key, value, query.size(1));
    const bool graph = wants_gradient({&query, &key, &value});
    BelowAutograd below;
    const auto blocks = std::make_shared<const BlocksBySource>(blocks_for(query, bounds));
    const AttentionKernel preferred = preferred_for(block_causal_ && !bounds.document_starts.empty(), preferred_);
    auto compute = [&] { return run(query, key, value, *blocks, preferred); };
    auto [output, log_sum_exp] = context.recorder.once<2>(ResultKind::attention, 0, compute);
    if (graph) {
      auto node = std::make_shared<RingBackward>();
      node->context = context_;
      node->blocks = blocks;
      node->preferred = preferred;
      node->query = query.detach(), node->key = key.detach(), node->value = value.detach();
      node->output = output.detach(), node->log_sum_exp = log_sum_exp;
      for (const at::Tensor& saved : {query, key, value, output, log_sum_exp}) context.note_saved(saved);
      connect(std::move(node), {&query, &key, &value}, {output});
    }
    return output;
  }

 private:
  BlocksBySource blocks_for(const at::Tensor& query, const AttentionBounds& bounds) const {
    const std::vector<DocumentStarts> documents =
        block_causal_ ? bounds.document_starts : std::vector<DocumentStarts>();
    const int64_t ranks = context_->split.ranks;
    TITAN_CHECK(ranks == context_->communicator->size(), ranks, context_->communicator->size());
    BlocksBySource blocks;
    for (int64_t source = 0; source < ranks; ++source) {
      blocks.push_back(attention_blocks(context_->split, query.size(0), query.size(1) * ranks,
                                        context_->communicator->rank(), source, documents));
    }
    return blocks;
  }

  std::array<at::Tensor, 2> run(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                const BlocksBySource& blocks, AttentionKernel preferred) const {
    const Ring ring(*context_);
    const at::TensorOptions wide = query.options().dtype(at::kFloat);
    const AttentionSums sums{at::zeros(query.sizes(), wide), at::full({query.size(0), query.size(2), query.size(1)},
                                                                      -std::numeric_limits<double>::infinity(), wide)};
    const auto merge = [&](const auto&... arguments) {
      query.is_cpu() ? merge_tiled_attention(arguments...) : merge_dense_attention(preferred, arguments...);
    };
    KeyValueRotation rotation(ring, context_->rotation, key, value);
    for (int64_t step = 0; step < ring.ranks; ++step) {
      const KeyValue& present = rotation.at_step(step);
      ring.note("attend", ring.source(step));
      merge(sums, query, present[0], present[1], blocks[static_cast<size_t>(ring.source(step))]);
    }
    return {sums.output.to(query.scalar_type()), sums.log_sum_exp};
  }

  std::shared_ptr<const ContextParallel> context_;
  bool block_causal_;
  AttentionKernel preferred_;
};

}  // namespace

std::unique_ptr<AttentionCore> make_attention_core(bool block_causal, std::shared_ptr<const ContextParallel> context,
                                                   AttentionKernel preferred) {
  if (!context) return make_sdpa_core(block_causal, preferred);
  return std::make_unique<RingCore>(std::move(context), block_causal, preferred);
}

namespace {

/// One document's positions within one chunk of a rank, and their offset in the local sequence.
struct Piece {
  PlaceRange places;
  int64_t local;

  int64_t size() const { return places.end - places.begin; }
};

std::vector<Piece> pieces_of(const std::vector<PlaceRange>& held, const PlaceRange& document) {
  std::vector<Piece> pieces;
  int64_t local = 0;
  for (const PlaceRange& range : held) {
    const PlaceRange shared{std::max(range.begin, document.begin), std::min(range.end, document.end)};
    if (shared.begin < shared.end) pieces.push_back({shared, local + shared.begin - range.begin});
    local += range.end - range.begin;
  }
  return pieces;
}

/// A contiguous document is one range of any rank's local sequence. A query sees another rank's keys up to its own
/// chunk, which are a prefix. Queries that see the same keys form one block.
void add_blocks(std::vector<AttentionBlock>& blocks, const AttentionBlock& where, const std::vector<Piece>& queries,
                const std::vector<Piece>& keys) {
  bool extends = false;
  for (const Piece& query : queries) {
    int64_t seen = 0;
    for (const Piece& key : keys) seen += key.places.end <= query.places.begin ? key.size() : 0;
    extends = extends && blocks.back().keys == seen;
    if (extends) {
      blocks.back().queries += query.size();
    } else if (seen > 0) {
      AttentionBlock block = where;
      block.query = query.local, block.queries = query.size();
      block.key = keys.front().local, block.keys = seen;
      blocks.push_back(block);
      extends = true;
    }
  }
}

void add_own_block(std::vector<AttentionBlock>& blocks, AttentionBlock block, const std::vector<Piece>& pieces) {
  if (pieces.empty()) return;
  for (const Piece& piece : pieces) block.queries += piece.size();
  block.query = block.key = pieces.front().local;
  block.keys = block.queries;
  block.causal = true;
  blocks.push_back(block);
}

}  // namespace

std::vector<AttentionBlock> attention_blocks(const SequenceSplit& split, int64_t samples, int64_t length, int64_t rank,
                                             int64_t source, const std::vector<DocumentStarts>& documents) {
  TITAN_CHECK(documents.empty() || std::ssize(documents) == samples, documents.size(), samples);
  const std::vector<PlaceRange> queries = split.places(rank, length);
  const std::vector<PlaceRange> keys = split.places(source, length);
  std::vector<AttentionBlock> blocks;
  auto add = [&](const AttentionBlock& where, const PlaceRange& document) {
    const std::vector<Piece> query_pieces = pieces_of(queries, document);
    if (rank == source) return add_own_block(blocks, where, query_pieces);
    add_blocks(blocks, where, query_pieces, pieces_of(keys, document));
  };
  if (documents.empty()) {
    add({.sample = 0, .samples = samples}, {0, length});
    return blocks;
  }
  for (int64_t sample = 0; sample < samples; ++sample) {
    const DocumentStarts& starts = documents[static_cast<size_t>(sample)];
    for (size_t i = 0; i < starts.size(); ++i) {
      const int64_t end = i + 1 < starts.size() ? starts[i + 1] : length;
      add({.sample = sample, .samples = 1}, {starts[i], end});
    }
  }
  return blocks;
}

}  // namespace titan
