// Computes one microbatch twice and compares every bit of its loss and of its gradients: a processor that computes
// wrong numbers now and then gives other bits. With debug.replay_on_neighbours all data-parallel ranks compute the same
// microbatch: this also finds a processor that computes the same wrong numbers each time. On a CPU equal bits need
// equal processors and numbers of threads, on a GPU debug.deterministic.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "titan/model/model.h"
#include "titan/plan/device_mesh.h"

namespace titan {

struct ModelDescription;
struct NamedRanks;
struct Run;

/// Hashes of what a rank computed of a microbatch: of each gradient before any sum over ranks, and of the loss.
using ReplayHashes = std::vector<std::pair<std::string, int64_t>>;
/// Names of what differs, in the order in which it is computed; both have the same names.
std::vector<std::string> unequal_results(const ReplayHashes& first, const ReplayHashes& second);
/// One hash of all hashes, which ranks compare.
int64_t combined(const ReplayHashes& hashes);
/// Sets of ranks that compute the same results if they are given the same microbatch: those with the same stage, parts
/// of the sequence and of matrices, and the same parts of weights that are split for good over data axes.
std::vector<std::vector<int64_t>> ranks_alike(const ModelDescription& model, const DeviceMesh& mesh);

class ReplayCheck {
 public:
  /// `run`: its model is built, and it outlives this object. Throws Error(bad_config) if debug.replay_on_neighbours is
  /// set and no two ranks are alike.
  explicit ReplayCheck(const Run& run);

  /// Before the first step of this process: the run's state is that of `step`, and taken for right.
  void begin(int64_t step) { last_agreeing_ = step; }
  /// The step whose state the last replay that agreed computed with, or the one that this process began with.
  int64_t last_agreeing() const { return last_agreeing_; }
  bool is_due(int64_t step) const;
  /// Computes the first microbatch of `step`, the next one, twice. Call it between two steps; collective. Throws
  /// Error(silent_corruption) on all ranks.
  void check(int64_t step, const BatchContext& microbatch);

 private:
  ReplayHashes replay(const BatchContext& microbatch) const;
  void check_own(int64_t step, const BatchContext& microbatch) const;
  void check_neighbours(int64_t step, const BatchContext& microbatch) const;
  /// The microbatch that the first data-parallel rank has, of this rank's part of each sequence.
  BatchContext shared_microbatch(const BatchContext& own) const;
  /// Rank 0: writes what was found before `step`.
  void record(int64_t step, const NamedRanks& named) const;
  [[noreturn]] void fail(int64_t step, const std::string& what) const;

  const Run& run_;
  std::vector<std::vector<int64_t>> alike_;  // empty: neighbours are not compared
  int64_t last_agreeing_ = 0;
  bool has_agreed_ = false;  // a replay of this process
};

}  // namespace titan
