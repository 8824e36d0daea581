// The rules of actions, stated once: what each kind needs, holds, starts and waits for. The rank machine
// (plan/rank_machine.h) reads them for what one rank holds, the mesh engine (mesh_engine.h) for how ranks wait for each
// other, and the checks of schedule tables take their order from them. Apart from these, only code that makes actions
// (families, lowering, expand), runs them (the executor) or counts their traffic and compute time (exchanges_of,
// StageTimes) looks at their kinds. Pure data: what a rule applies to is found by its reader.
#pragma once

#include <array>
#include <vector>

#include "titan/schedule/action.h"

namespace titan {

/// What actions hold, or have in flight. A pipeline schedule has the things of a whole stage in place of a unit's.
enum class Thing : uint8_t {
  // Of a unit and microbatch:
  input,            ///< hidden states that forward takes
  output_gradient,  ///< the gradient that backward takes
  saved,            ///< activations for backward
  away,             ///< saved activations that are not, or not wholly, on the device
  fetch,            ///< their copy back to the device
  deferred,         ///< weight gradients that are still to be computed
  finished,         ///< backward, or a validation's forward, has run in this program
  // Of a stage and microbatch (within a stage, what a unit returns is the input or output_gradient of its neighbour):
  output,          ///< hidden states that forward has made
  input_gradient,  ///< the gradient that backward has made
  // Of a message:
  receive,  ///< it is being received
  send,     ///< it is being sent
  // Of a weight group:
  copies,       ///< compute copies that match the masters
  scales,       ///< float8 scales that match the masters
  gather,       ///< the all-gather
  weights,      ///< unsharded weights that units may use
  gradient,     ///< storage of the gradient
  adding,       ///< that storage while microbatches may still add to it
  order,        ///< the place in gradient_order that the gradient has reached
  scatter,      ///< the sum over shards
  replica_sum,  ///< the sum over replicas
  collected,    ///< matrices on their way to the ranks that compute their updates
  transformed,  ///< updates of matrices on their way back
  host_copy,    ///< the copy to the optimizer on the host
  // Of a group's slots of memory, which it shares with other groups:
  slot,         ///< unsharded weights are in it
  own_slot,     ///< the gradient before reduction is in it
  narrow_slot,  ///< the narrowed gradient is in it
  // Of the rank:
  offload,  ///< the copy of saved activations to the host
  call,     ///< a collective that is waited for at once
  loss,     ///< the loss of all ranks
  changes,  ///< weights and moments may change
  control,  ///< clip factor and skip flag of the whole step
};
inline constexpr size_t kThings = static_cast<size_t>(Thing::control) + 1;

enum class Does : uint8_t {
  needs,     ///< it must be held
  lacks,     ///< it must not be held
  acquires,  ///< holds it from here on; it must not be held already
  ensures,   ///< holds it from here on
  replaces,  ///< holds it in place of whatever was there; it must not be held already
  releases,  ///< holds it until here
  drops,     ///< holds it until here, if it is held
  posts,     ///< starts it; it must not be in flight already
  waits,     ///< ends when it ends
  advances,  ///< is the next of gradient_order
};

/// The cases in which an effect exists.
enum class When : uint8_t {
  always,
  gradients_in_forward,  ///< the unit computes its weight gradients in forward
  weights_in_backward,   ///< the unit's backward reads its weights
  split_unit,            ///< in a program whose weight gradients are separate instructions
  gathers_masters,       ///< the group's weights are gathered without a compute copy
  finds_scales,          ///< the group's weights are resident, or gathered in float8
  occupant,              ///< it is about the group that the slot holds, if any
  last_sum,              ///< the sum that ends is the gradient's last
  slot_is_read,          ///< the sum that ends is the last reader of the gradient slot
  one_group,             ///< the action names a group
  all_groups,            ///< the action is about all groups
  steps_in_backward,     ///< each group is stepped by itself
  whole_step,            ///< each group is stepped by itself, and the action ends the step
};

struct Effect {
  Does does;
  Thing thing;
  const char* problem = nullptr;  ///< what is wrong if the rule is broken; none: `waits` need not find it in flight
  When when = When::always;
};

/// What an action computes, for costs.
enum class Work : uint8_t {
  none,
  forward,
  backward,
  weight_gradients,
  narrowing,
  squares,
  matrices,
  optimizer,
  copies
};

/// Effects before and after its work, in order. Merged actions have those of their parts.
struct Rule {
  Work work = Work::none;
  std::vector<Effect> before{}, after{};
};

inline constexpr size_t kActionKinds = static_cast<size_t>(ActionKind::zero_gradient) + 1;
using RuleTable = std::array<Rule, kActionKinds>;

/// The table. Tests pass damaged copies of it to its readers.
const RuleTable& action_rules();
inline const Rule& rule_of(const RuleTable& rules, ActionKind kind) { return rules[static_cast<size_t>(kind)]; }
/// True if the rule of this kind has this effect in some case. When::split_unit is left out: schedule tables write a
/// split backward as two actions, I and W.
bool has_effect(const RuleTable& rules, ActionKind kind, Does does, Thing thing);

/// What decides which instructions a group's gradient passes through in a step.
struct GradientPath {
  bool sharded = false;     ///< summed over shards
  bool replicated = false;  ///< summed over replicas
  bool partial = false;     ///< has partial sums of tensor-parallel ranks
  bool tied = false;        ///< has partial sums of two pipeline ranks
  bool on_host = false;     ///< the optimizer is on the host
  bool in_backward = false;
  bool matrices = false;  ///< updates of matrices are computed on one rank each
};
/// The instructions about a group's gradient in a step, in order.
std::vector<ActionKind> gradient_order(const GradientPath& path);

/// The most things of this kind that a rank's actions hold at once: a fold over the effects in the table, which knows
/// no kind. A merged action holds those of its parts together.
int most_held(std::span<const Action> actions, Thing thing, const RuleTable& rules = action_rules());

}  // namespace titan
