// Activation checkpointing as data: which results of a unit's forward pass are kept, which are computed again in the
// replay, and which the replay does not need at all. Operations ask `Recorder::once`; policies differ only in what they
// name.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "titan/base/error.h"

namespace titan {

/// What a result is; the ordinal beside it counts results of one kind in the order the unit's forward makes them.
enum class ResultKind : uint8_t { norm, linear, rotary, attention, residual, activation };
inline constexpr size_t kResultKinds = 6;
std::string_view name(ResultKind kind);

/// What becomes of a result of a checkpointed unit.
enum class Keep : uint8_t {
  recompute,    // computed again in the replay
  keep,         // kept from the first run, handed out in the replay
  placeholder,  // its value is not needed in the replay: a zero-stride tensor of its shape stands in
};

class RecomputePolicy {
 public:
  /// Nothing is checkpointed: every operation saves what its backward needs.
  static RecomputePolicy none() { return RecomputePolicy(false); }
  /// The unit is run again in backward; only its input is kept until `set` says otherwise.
  static RecomputePolicy full() { return RecomputePolicy(true); }

  bool checkpointed() const { return checkpointed_; }
  Keep of(ResultKind kind, int ordinal) const {
    return table_[static_cast<size_t>(kind)][static_cast<size_t>(ordinal)];
  }
  RecomputePolicy& set(ResultKind kind, int ordinal, Keep keep);
  bool operator==(const RecomputePolicy&) const = default;

 private:
  static constexpr size_t kOrdinals = 16;
  explicit RecomputePolicy(bool checkpointed) : checkpointed_(checkpointed) {}

  bool checkpointed_;
  std::array<std::array<Keep, kOrdinals>, kResultKinds> table_{};
};

/// Kept results of one unit and one microbatch, between its first run and its replay.
class Recorder {
 public:
  enum class Phase { off, first_run, replay };

  explicit Recorder(RecomputePolicy policy) : policy_(policy) {}
  bool checkpointed() const { return policy_.checkpointed(); }
  void start(Phase phase) { phase_ = phase; }
  Phase phase() const { return phase_; }

  /// The results of `compute` (a std::array of tensors), or what the policy puts in their place. `shapes` are those of
  /// the results; a replay that asks for another kind, ordinal or shape than was recorded fails.
  template <size_t N, class Compute>
  std::array<at::Tensor, N> once(ResultKind kind, int ordinal, const Compute& compute);
  template <class Compute>
  at::Tensor once(ResultKind kind, int ordinal, const Compute& compute) {
    return once<1>(kind, ordinal, [&] { return std::array<at::Tensor, 1>{compute()}; })[0];
  }

  /// Whether the replay will hand out `kind`, so that its first-run result must never be written again.
  bool keeps(ResultKind kind, int ordinal) const {
    return phase_ != Phase::off && policy_.of(kind, ordinal) == Keep::keep;
  }
  bool skips(ResultKind kind, int ordinal) const {
    return phase_ == Phase::replay && policy_.of(kind, ordinal) == Keep::placeholder;
  }

  /// All tensors held, for accounting.
  std::vector<at::Tensor> kept() const;
  /// The same to be taken away and put back between the first run and the replay, in an order that does not change.
  std::vector<at::Tensor*> kept_places();
  /// In debug mode: fails when a kept tensor changed since it was recorded (a hash of every kept tensor is compared).
  void check_unchanged() const;
  void set_hash_check(bool on) { hash_check_ = on; }

 private:
  struct Kept {
    ResultKind kind;
    int ordinal;
    std::vector<at::Tensor> tensors;
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

/// A tensor of `sizes` without memory of its own (all strides 0): stands for a value nobody reads.
at::Tensor placeholder(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace titan
