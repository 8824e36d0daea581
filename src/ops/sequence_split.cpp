#include <algorithm>

#include "titan/base/error.h"
#include "titan/ops/context_parallel.h"

namespace titan {
namespace {

/// One document's places in one of a rank's chunks, and where they lie in its local sequence.
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

/// A document without holes is one stretch of any rank's local sequence, and of another rank's keys a query sees those
/// that lie before its own chunk: the first so many. Queries that see the same keys are one block.
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

std::vector<PlaceRange> SequenceSplit::places(int64_t rank, int64_t length) const {
  TITAN_CHECK(rank >= 0 && rank < ranks && length % chunks() == 0, rank, ranks, length, chunks());
  const int64_t chunk = length / chunks();
  std::vector<PlaceRange> ranges{{rank * chunk, (rank + 1) * chunk}};
  if (chunks() > ranks) ranges.push_back({length - (rank + 1) * chunk, length - rank * chunk});
  return ranges;
}

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
