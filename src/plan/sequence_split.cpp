#include "titan/plan/sequence_split.h"

#include "titan/base/error.h"

namespace titan {

std::vector<PlaceRange> SequenceSplit::places(int64_t rank, int64_t length) const {
  TITAN_CHECK(rank >= 0 && rank < ranks && length % chunks() == 0, rank, ranks, length, chunks());
  const int64_t chunk = length / chunks();
  std::vector<PlaceRange> ranges{{rank * chunk, (rank + 1) * chunk}};
  if (chunks() > ranks) ranges.push_back({length - (rank + 1) * chunk, length - rank * chunk});
  return ranges;
}

}  // namespace titan
