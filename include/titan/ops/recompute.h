// Activation checkpointing as data: which results of a unit's forward are kept, which are recomputed in the replay, and
// which the replay does not need. Operations call `Recorder::once`; policies differ only in which results they name.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "titan/base/error.h"

namespace titan {

/// The kind of a result; ordinals count the results of one kind in forward order.
enum class ResultKind : uint8_t { norm, linear, rotary, attention, residual, activation };
inline constexpr size_t kResultKinds = 6;
std::string_view name(ResultKind kind);

/// What happens to a result of a checkpointed unit.
enum class Keep : uint8_t {
  recompute,    // recompute it in the replay
  keep,         // save it in the first run, return it in the replay
  placeholder,  // its value is not needed in the replay: return a zero-stride tensor of its shape
};

class RecomputePolicy {
 public:
  /// No checkpointing: every operation saves what its backward needs.
  static RecomputePolicy none() { return RecomputePolicy(false); }
  /// The unit is run again in backward; only its input is kept until `set` changes that.
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

/// Kept results of one unit and one microbatch, between the first run and the replay.
class Recorder {
 public:
  enum class Phase { off, first_run, replay };

  explicit Recorder(RecomputePolicy policy) : policy_(policy) {}
  bool checkpointed() const { return policy_.checkpointed(); }
  void start(Phase phase) { phase_ = phase; }
  Phase phase() const { return phase_; }

  /// Returns the results of `compute` (a std::array of tensors), or in a replay those that were kept. Throws if a
  /// replay asks for another kind or ordinal than was recorded next. An operation whose result may be a placeholder
  /// asks `skips` first.
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

/// A tensor of `sizes` without memory of its own (all strides 0), for a value that is never read.
at::Tensor placeholder(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace titan
