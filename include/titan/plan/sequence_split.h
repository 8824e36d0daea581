// How a sequence is split over context-parallel ranks: integers only. The attention blocks that result, and the ring
// that exchanges keys and values, are in ops/context_parallel.h.
#pragma once

#include <cstdint>
#include <vector>

#include "titan/config/choices.h"

namespace titan {

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

/// The token positions of every sample that a rank reads; all of them by default.
struct SequenceShare {
  SequenceSplit split;
  int64_t rank = 0;

  bool whole() const { return split.ranks == 1; }
};

}  // namespace titan
