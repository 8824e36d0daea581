// Runs one rank's instructions by the rules of actions (schedule/rules.h) and tracks what the rank holds and has in
// flight. The proof of programs, the memory of a step and the weight state of `expand` are read from it.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "titan/plan/program.h"
#include "titan/schedule/rules.h"

namespace titan {

/// The rule that an instruction breaks, as a sentence.
struct BrokenRule : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// One thing of a unit, group, stage or slot.
struct Token {
  Thing thing;
  size_t of = 0;     // unit, group, slot or stage, depending on the thing
  size_t index = 0;  // its place among all tokens
  int value = 1;     // when held; in a slot the group + 1
};

/// What a caller sees of each instruction, in order.
class RankObserver {
 public:
  virtual ~RankObserver() = default;
  /// The token is held from here on, or until here.
  virtual void changed(const Token& token, bool held) = 0;
  /// The instruction computes, between what it needs and what it makes.
  virtual void works(const Action& action, Work work) = 0;
};

class RankMachine {
 public:
  /// weight_state: only what WeightState holds (copies, scales, slots, gradients). For expand, which builds programs
  /// and does not prove them.
  enum class Tracks { everything, weight_state };

  /// A rank that starts in the state `entry`. `plan` and `rules` must outlive it.
  RankMachine(const Plan& plan, const WeightState& entry, Tracks tracks = Tracks::everything,
              const RuleTable& rules = action_rules());

  /// Throws BrokenRule.
  void run(const Action& action, RankObserver* observer = nullptr);
  /// A program starts: no unit has finished yet.
  void begin_program();

  WeightState state() const;
  bool has(Thing thing, size_t of) const { return held_[start_of(thing) + of] != 0; }
  /// The number of tokens of this thing that are held.
  int64_t count(Thing thing) const;
  /// The group whose weights the slot holds; -1: none.
  int group_in(size_t weight_slot) const { return held_[start_of(Thing::slot) + weight_slot] - 1; }

 private:
  size_t start_of(Thing thing) const { return starts_[static_cast<size_t>(thing)]; }
  size_t size_of_thing(Thing thing) const;
  bool is_tracked(Thing thing) const;

  void run_leaf(const Action& action, RankObserver* observer);
  void apply(const std::vector<Effect>& effects, const Action& action, RankObserver* observer);
  void apply(const Effect& effect, const Token& token, const Action& action, RankObserver* observer);
  void set(const Token& token, int value, RankObserver* observer);
  void advance_gradient(size_t group, ActionKind kind);

  // Each sets found_ to the tokens that an effect of an action is about.
  void find(const Effect& effect, const Action& action);
  void find_hidden(Thing thing, const Action& action);
  void find_of_units(Thing thing, const Action& action);
  void find_of_groups(const Effect& effect, const Action& action);
  bool exists(When when, const Action& action) const;
  bool exists_for(const Effect& effect, size_t group, const Action& action) const;
  void found(Thing thing, size_t of, int microbatch = -1, int value = 1);

  const Plan& plan_;
  const Tracks tracks_;
  const RuleTable& rules_;
  size_t microbatches_;
  std::vector<size_t> sizes_;                    // by what there is one token each of
  std::vector<size_t> starts_;                   // by thing: its first token
  std::vector<int> held_;                        // by token: 0, or its value
  std::vector<std::vector<ActionKind>> orders_;  // by group: what its gradient passes through
  std::vector<std::vector<size_t>> users_;       // by group: its units
  std::vector<Token> found_;
};

/// The proofs with `rules` in place of action_rules(), for tests that break a rule.
std::string program_problem(const Plan& plan, std::span<const Program> programs, const RuleTable& rules);
std::string mesh_problem(std::span<const RankPrograms> ranks, const RuleTable& rules);

}  // namespace titan
