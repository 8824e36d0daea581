// Finds weights and moments whose bits are silently wrong, before they are saved.
//
// A check of step s has two halves. After the step every rank hashes its weights and moments, and replicas compare. In
// step s + 1, before the optimizer changes them, every rank hashes its own again, and looks whether the copies that it
// has computed with are those of its masters: a rank whose memory has changed names itself. What is the same weight on
// several ranks follows from the plan: the replicas of a weight group, weights that tensor-parallel ranks hold whole,
// and tied embeddings.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "titan/distributed/communicator.h"
#include "titan/ops/parameter.h"
#include "titan/parallel/state_hash.h"

namespace titan {

struct RankFindings;
struct Run;

class StateCheck {
 public:
  /// `run`: its model and optimizer are built, and it outlives this object.
  explicit StateCheck(const Run& run);

  /// What can be compared in this layout, in one line; empty: checks are off.
  std::string describe() const;
  /// Before the first step of this process: the run's state is that of `step`, and taken for right.
  void begin(int64_t step) { last_agreeing_ = step; }
  /// After `step`, and before it is saved if `saves`. Collective: ends the check of the step before, and begins one of
  /// this step if it is due. Throws Error(silent_corruption) on all ranks, and before a save Error(non_finite) if a
  /// number of the state is not finite.
  void after_step(int64_t step, bool saves);
  /// Call it before the optimizer changes anything in a step.
  void before_change();
  /// Collective: true on all ranks if it is on one.
  bool is_on_any_rank(bool here) const;
  /// Whether a check is under way, whose second half waits for the device within the next step.
  bool is_under_way() const { return written_.has_value(); }
  /// How long checks have taken so far, in one line; empty: there were none.
  std::string cost() const;
  /// A loss or a gradient of `step` was not finite: replicas that disagree are the better explanation. Throws
  /// Error(silent_corruption). Collective.
  void explain(int64_t step);

 private:
  /// A weight or a moment of this rank.
  struct Part {
    const Parameter* parameter = nullptr;
    std::string state;
  };
  /// Parts that every rank of a communicator has.
  struct Comparison {
    std::shared_ptr<Communicator> ranks;
    std::vector<size_t> parts;
  };

  bool is_on() const;
  void list_parts();
  void list_comparisons();
  std::vector<TensorState> states() const;
  /// By part: whether a replica has other bits.
  std::vector<bool> unequal_parts(const std::vector<TensorState>& states) const;
  void end_check(int64_t step);
  void begin_check(int64_t step, bool saves);
  void compare(int64_t step, const std::vector<TensorState>& states);
  void refuse_non_finite(int64_t step, const std::vector<TensorState>& states) const;
  RankFindings changes() const;
  /// Collects the findings of all ranks, writes the file and throws.
  [[noreturn]] void fail(int64_t step, RankFindings own);

  const Run& run_;
  std::vector<Part> parts_;
  std::vector<Comparison> comparisons_;
  std::optional<std::vector<TensorState>> written_;  // after the step of the check that is under way
  std::optional<std::vector<TensorState>> used_;     // before the next change
  std::vector<const Parameter*> changed_copies_;     // found then
  int64_t step_ = 0;                                 // of that check
  int64_t last_agreeing_ = 0;
  int64_t checks_ = 0;  // complete
  std::chrono::steady_clock::duration time_{};
};

}  // namespace titan
