// Runs the actions of all ranks of a mesh by the rules of actions (rules.h): each rank runs its actions in order and
// blocks where a rule says so. A Mesh implements communication: as collective calls that block until all members have
// made them (the deadlock proof), or as simulated time (a training step, a pipeline schedule).
#pragma once

#include <span>
#include <vector>

#include "titan/schedule/rules.h"

namespace titan {

class Mesh {
 public:
  virtual ~Mesh() = default;
  /// Applies one effect of a plain action, or of a part of a merged one. False: the rank is blocked; the engine repeats
  /// the call after other ranks have advanced.
  virtual bool apply(size_t rank, const Effect& effect, const Action& action) = 0;
  /// The action computes, after its effects before work and before those after it. A merged action's parts compute one
  /// after the other, when all of them may.
  virtual void works(size_t rank, const Action& action, Work work) = 0;
  /// All effects have been applied. False: the rank must wait before its next action.
  virtual bool ends(size_t rank, const Action& whole) = 0;
  /// Advances what a rank runs asynchronously (transfers on a NCCL stream). True if anything changed.
  virtual bool moves(size_t) { return false; }
};

class MeshEngine {
 public:
  /// A blocked rank, and what it waits for.
  struct Blocked {
    size_t rank = 0;
    size_t position = 0;             ///< of its action, from 0
    const Action* whole = nullptr;   ///< the action
    const Action* part = nullptr;    ///< the same, or its part that waits
    const Effect* effect = nullptr;  ///< what it waits for; none: the end of the action
  };

  /// `mesh` and `rules` must outlive it.
  explicit MeshEngine(Mesh& mesh, const RuleTable& rules = action_rules()) : mesh_(mesh), rules_(rules) {}
  /// The actions of the next rank; they must outlive the engine.
  void add_rank(std::vector<const Action*> actions) { ranks_.push_back({std::move(actions)}); }
  void add_rank(std::span<const Action> actions);

  /// Advances ranks until each has finished or waits for another. Returns those that wait; empty: all have finished.
  std::vector<Blocked> run();

 private:
  enum class Phase { before, work, after, end };
  struct Rank {
    std::vector<const Action*> actions;
    size_t next = 0;  // action
    Phase phase = Phase::before;
    size_t part = 0, effect = 0;  // of the next action in this phase
  };
  bool advance(size_t rank);
  bool apply(size_t rank, bool before);

  Mesh& mesh_;
  const RuleTable& rules_;
  std::vector<Rank> ranks_;
};

}  // namespace titan
