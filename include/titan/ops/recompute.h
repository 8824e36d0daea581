// The recorder of activation checkpointing: operations call `Recorder::once`, and the policy (plan/recompute_policy.h)
// decides which results it keeps, recomputes or skips.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "titan/base/error.h"
#include "titan/plan/recompute_policy.h"

namespace titan {

/// Kept results of one unit and one microbatch, between the first run and the replay.
class Recorder {
 public:
  enum class Phase { off, first_run, replay };

  explicit Recorder(RecomputePolicy policy) : policy_(policy) {}
  bool checkpointed() const { return policy_.checkpointed(); }
  void start(Phase phase) { phase_ = phase; }
  Phase phase() const { return phase_; }

  /// Returns the results of `compute` (a std::array of tensors of any shapes), or in a replay those that were kept.
  /// Throws if a replay asks for another kind or ordinal than was recorded next. An operation whose result may be a
  /// placeholder asks `skips` first.
  template <size_t N, class Compute>
  std::array<at::Tensor, N> once(ResultKind kind, int ordinal, const Compute& compute);
  template <class Compute>
  at::Tensor once(ResultKind kind, int ordinal, const Compute& compute) {
    return once<1>(kind, ordinal, [&] { return std::array<at::Tensor, 1>{compute()}; })[0];
  }

  /// True if the replay returns the recorded result, so the first run's result must not be overwritten.
  bool keeps(ResultKind kind, int ordinal) const {
    return phase_ != Phase::off && policy_.of(kind, ordinal) == Keep::keep;
  }
  bool skips(ResultKind kind, int ordinal) const {
    return phase_ == Phase::replay && policy_.of(kind, ordinal) == Keep::placeholder;
  }

  /// All tensors held, for memory accounting.
  std::vector<at::Tensor> kept() const;
  /// The same tensors by address, for offload between first run and replay; the order is stable.
  std::vector<at::Tensor*> kept_places();
  /// Debug mode: the replay throws if a kept tensor changed since it was recorded (compares a hash of each).
  void set_hash_check(bool on) { hash_check_ = on; }

 private:
  struct Kept {
    ResultKind kind;
    int ordinal;
    std::vector<at::Tensor> tensors;  // of any shapes
    uint64_t hash = 0;
  };
  void record(ResultKind kind, int ordinal, std::vector<at::Tensor> tensors);
  std::vector<at::Tensor> replay(ResultKind kind, int ordinal);

  RecomputePolicy policy_;
  Phase phase_ = Phase::off;
  bool hash_check_ = false;
  std::deque<Kept> kept_;
};

template <size_t N, class Compute>
std::array<at::Tensor, N> Recorder::once(ResultKind kind, int ordinal, const Compute& compute) {
  if (phase_ == Phase::off || policy_.of(kind, ordinal) != Keep::keep) return compute();
  std::array<at::Tensor, N> results;
  if (phase_ == Phase::first_run) {
    results = compute();
    record(kind, ordinal, {results.begin(), results.end()});
    return results;
  }
  std::vector<at::Tensor> kept = replay(kind, ordinal);
  TITAN_CHECK(kept.size() == N, kept.size(), N);
  std::move(kept.begin(), kept.end(), results.begin());
  return results;
}

/// A tensor of `sizes` without memory of its own (all strides 0), for a value that is never read.
at::Tensor placeholder(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace titan
