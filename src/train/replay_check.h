// Computes one microbatch twice and compares every bit of its loss and of its gradients: a processor that computes
// wrong numbers now and then gives other bits. Between neighbours, every data-parallel rank computes the same
// microbatch: a processor that computes the same wrong numbers each time is found too. On a CPU equal bits need equal
// processors and numbers of threads, on a GPU debug.deterministic.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "titan/model/model.h"

namespace titan {

struct Run;

/// Hashes of what a rank computed of a microbatch: of each gradient before any sum over ranks, and of the loss.
using ReplayHashes = std::vector<std::pair<std::string, int64_t>>;
/// Names of what differs, in the order in which it is computed; both have the same names.
std::vector<std::string> unequal_results(const ReplayHashes& first, const ReplayHashes& second);
/// What is one number of all of them, to be compared among ranks.
int64_t combined(const ReplayHashes& hashes);

class ReplayCheck {
 public:
  /// `run` must outlive it.
  explicit ReplayCheck(const Run& run) : run_(run) {}

  bool is_due(int64_t step) const;
  /// Between two steps, with the first microbatch of the next one. Collective. Throws Error(silent_corruption) on all
  /// ranks.
  void check(int64_t step, const BatchContext& microbatch) const;

 private:
  ReplayHashes replay(const BatchContext& microbatch) const;
  void check_own(int64_t step, const BatchContext& microbatch) const;
  void check_neighbours(int64_t step, const BatchContext& microbatch) const;
  /// The microbatch that the first data-parallel rank has, of this rank's part of each sequence.
  BatchContext shared_microbatch(const BatchContext& own) const;
  [[noreturn]] void fail(int64_t step, const std::string& what) const;

  const Run& run_;
};

}  // namespace titan
