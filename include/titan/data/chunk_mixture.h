// Several streams of chunks as one, by weights: an exact schedule in integers, so that after n chunks every stream has
// given its share of n, less or more by less than one chunk, and the next stream is a function of how many each gave.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "titan/data/chunk_stream.h"

namespace titan {

/// Weights as coprime integers. Whole numbers count as parts of their sum; fractions must sum to 1 (to a millionth).
/// Throws Error(bad_config) with the sum: what is wrong with them.
std::vector<int64_t> integer_weights(const std::vector<double>& weights);

/// Which stream gives the next chunk when stream i has given `given[i]` so far and all weights are above 0: of those
/// whose share of the next total is not yet exceeded, the one that must give soonest (Still, "A class of new methods
/// for congressional apportionment", 1979: the quota method).
size_t next_in_mixture(const std::vector<int64_t>& weights, const std::vector<int64_t>& given);

class ChunkMixture : public ChunkSource {
 public:
  ChunkMixture(std::vector<std::unique_ptr<ChunkSource>> streams, std::vector<int64_t> weights);

  bool next(Chunk& chunk) override;
  StreamState state() const override;
  void restore(const StreamState& state) override;
  const DataCounters& counters() const override { return counters_; }
  std::vector<std::string> take_notices() override;
  std::string reading() const override;

 private:
  void take_counters();

  std::vector<std::unique_ptr<ChunkSource>> streams_;
  std::vector<int64_t> weights_;
  std::vector<int64_t> given_;
  std::atomic<size_t> current_{0};
  DataCounters counters_;
};

}  // namespace titan
