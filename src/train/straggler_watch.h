// Names ranks that compute slower than those that do the same work. Every few steps ranks exchange how long they have
// computed, without waits for each other (parallel/compute_clock.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "titan/train/device.h"

namespace titan {

struct Run;

/// Each rank's seconds relative to the lower median of the ranks that do the same work; 0 if fewer than three do, or
/// if the median is 0. `work`: by rank, equal where the work is equal.
std::vector<double> straggler_scores(std::span<const double> seconds, std::span<const int64_t> work);

/// Counts for how many windows in a row each rank has been slow.
class StragglerCount {
 public:
  /// A rank is named when its score is above `ratio` in `windows` windows in a row, and again after it was fast.
  StragglerCount(size_t ranks, double ratio, int64_t windows) : slow_(ranks), ratio_(ratio), windows_(windows) {}

  /// Of one window; returns the ranks to name now.
  std::vector<int64_t> add(std::span<const double> scores);

 private:
  std::vector<int64_t> slow_;
  double ratio_;
  int64_t windows_;
};

class StragglerWatch {
 public:
  /// `run` must outlive it.
  explicit StragglerWatch(Run& run);

  /// Call it after each step; collective.
  void after_step(int64_t step);

 private:
  struct Pending {
    int64_t step;
    HostCopy seconds;
  };
  bool is_on() const;
  void exchange(int64_t step);
  void judge(int64_t step, std::span<const double> seconds);
  void report(int64_t step, int64_t rank, double ratio);

  Run& run_;
  std::vector<int64_t> work_;  // by rank
  StragglerCount count_;
  int64_t steps_ = 0;               // of this process
  std::optional<Pending> pending_;  // on a GPU the seconds are read one window later
};

}  // namespace titan
