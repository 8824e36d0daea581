#include "rank_machine.h"

#include <fmt/format.h>

#include <algorithm>

#include "plan_parts.h"
#include "titan/base/error.h"

namespace titan {
namespace {

/// Of what there is one token each, in the order of Thing.
enum class Per { unit, stage, message, group, weight_slot, gradient_slot, message_slot, rank };

Per per_of(Thing thing) {
  if (thing <= Thing::finished) return Per::unit;
  if (thing <= Thing::input_gradient) return Per::stage;
  if (thing <= Thing::send) return Per::message;
  if (thing <= Thing::host_copy) return Per::group;
  if (thing == Thing::slot) return Per::weight_slot;
  if (thing == Thing::own_slot) return Per::gradient_slot;
  return thing == Thing::narrow_slot ? Per::message_slot : Per::rank;
}

bool is_hidden(Thing thing) {
  return thing == Thing::input || thing == Thing::output || thing == Thing::output_gradient ||
         thing == Thing::input_gradient;
}

GradientPath path_of(const Plan& plan, const WeightGroupPlan& group) {
  const PlanRequest& request = plan.request;
  return {.sharded = group.axes.shards > 1,
          .replicated = group.axes.sums_replicas,
          .partial = group.partial_numel() > 0,
          .tied = group.is_tied,
          .on_host = request.training.enable_cpu_offload,
          .in_backward = request.optimizer.early_step_in_backward,
          .matrices = !group.matrices.empty()};
}

size_t to_index(int number) { return static_cast<size_t>(number); }

}  // namespace

RankMachine::RankMachine(const Plan& plan, const WeightState& entry, Tracks tracks, const RuleTable& rules)
    : plan_(plan),
      tracks_(tracks),
      rules_(rules),
      microbatches_(static_cast<size_t>(plan.request.microbatches_per_pass())) {
  const size_t stages = plan.request.pipeline ? plan.request.pipeline->rank_of_stage.size() : 1;
  sizes_ = {
      plan.units.size() * microbatches_, stages * microbatches_,     2 * stages * microbatches_, plan.groups.size(),
      plan.weight_slots.size(),          plan.gradient_slots.size(), plan.message_slots.size(),  1};
  size_t tokens = 0;
  for (size_t thing = 0; thing < kThings; ++thing) {
    starts_.push_back(tokens);
    if (is_tracked(static_cast<Thing>(thing))) tokens += size_of_thing(static_cast<Thing>(thing));
  }
  held_.assign(tokens, 0);
  const auto start = [&](Thing thing, size_t of, int value) { held_[start_of(thing) + of] = value; };
  for (size_t slot = 0; slot < plan.weight_slots.size(); ++slot) start(Thing::slot, slot, entry.held[slot] + 1);
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    start(Thing::copies, g, entry.fresh[g]);
    start(Thing::scales, g, entry.scaled[g]);
    start(Thing::gradient, g, entry.open[g]);
  }
  if (tracks == Tracks::weight_state) return;
  users_.resize(plan.groups.size());
  for (size_t u = 0; u < plan.units.size(); ++u) {
    for (const size_t g : plan.units[u].groups) users_[g].push_back(u);
  }
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const WeightGroupPlan& group = plan.groups[g];
    orders_.push_back(group.is_trained() ? gradient_order(path_of(plan, group)) : std::vector<ActionKind>());
    start(Thing::adding, g, entry.open[g]);
    start(Thing::order, g, entry.open[g]);
  }
}

size_t RankMachine::size_of_thing(Thing thing) const { return sizes_[static_cast<size_t>(per_of(thing))]; }

bool RankMachine::is_tracked(Thing thing) const {
  return tracks_ == Tracks::everything || thing == Thing::copies || thing == Thing::scales || thing == Thing::slot ||
         thing == Thing::gradient;
}

WeightState RankMachine::state() const {
  WeightState state;
  for (size_t slot = 0; slot < plan_.weight_slots.size(); ++slot) state.held.push_back(group_in(slot));
  for (size_t g = 0; g < plan_.groups.size(); ++g) {
    state.fresh.push_back(has(Thing::copies, g));
    state.scaled.push_back(has(Thing::scales, g));
    state.open.push_back(has(Thing::gradient, g));
  }
  return state;
}

int64_t RankMachine::count(Thing thing) const {
  const auto first = held_.begin() + static_cast<std::ptrdiff_t>(start_of(thing));
  return std::count_if(first, first + static_cast<std::ptrdiff_t>(size_of_thing(thing)),
                       [](int value) { return value != 0; });
}

void RankMachine::begin_program() {
  const auto first = held_.begin() + static_cast<std::ptrdiff_t>(start_of(Thing::finished));
  std::fill_n(first, size_of_thing(Thing::finished), 0);
}

// ---- effects

void RankMachine::run(const Action& action, RankObserver* observer) {
  for (const Action& leaf : leaves(action)) run_leaf(leaf, observer);
}

void RankMachine::run_leaf(const Action& action, RankObserver* observer) {
  const Rule& rule = rule_of(rules_, action.kind);
  apply(rule.before, action, observer);
  if (observer && rule.work != Work::none) observer->works(action, rule.work);
  apply(rule.after, action, observer);
}

void RankMachine::apply(const std::vector<Effect>& effects, const Action& action, RankObserver* observer) {
  for (const Effect& effect : effects) {
    if (!is_tracked(effect.thing)) continue;
    find(effect, action);
    for (const Token& token : found_) apply(effect, token, action, observer);
  }
}

void RankMachine::apply(const Effect& effect, const Token& token, const Action& action, RankObserver* observer) {
  const int held = held_[token.index];
  const bool mine = held == token.value;
  const auto require = [&](bool condition) {
    if (!condition) throw BrokenRule(effect.problem ? effect.problem : "it breaks a rule");
  };
  switch (effect.does) {
    case Does::needs:
      return require(mine);
    case Does::lacks:
      return require(held == 0);
    case Does::acquires:
    case Does::posts:
      require(held == 0);
      return set(token, token.value, observer);
    case Does::ensures:
      require(held == 0 || mine);
      return set(token, token.value, observer);
    case Does::replaces:
      require(!mine);
      return set(token, token.value, observer);
    case Does::releases:
      require(mine);
      return set(token, 0, observer);
    case Does::waits:
      require(mine || !effect.problem);
      [[fallthrough]];
    case Does::drops:
      if (mine) set(token, 0, observer);
      return;
    case Does::advances:
      return advance_gradient(token.of, action.kind);
  }
}

void RankMachine::set(const Token& token, int value, RankObserver* observer) {
  if (held_[token.index] == value) return;
  held_[token.index] = value;
  if (observer) observer->changed(token, value != 0);
}

void RankMachine::advance_gradient(size_t group, ActionKind kind) {
  const std::vector<ActionKind>& order = orders_[group];
  if (order.empty()) throw BrokenRule("a frozen group has no gradient");
  int& done = held_[start_of(Thing::order) + group];
  const ActionKind next = order[to_index(done)];
  if (next != kind) {
    throw BrokenRule(fmt::format("the gradient of {} needs {} first", plan_.groups[group].name, word_of(next)));
  }
  done = (done + 1) % static_cast<int>(order.size());
}

// ---- what an effect is about

void RankMachine::found(Thing thing, size_t of, int microbatch, int value) {
  const size_t place = microbatch < 0 ? of : of * microbatches_ + to_index(microbatch);
  TITAN_CHECK(place < size_of_thing(thing), static_cast<int>(thing), of, microbatch);
  found_.push_back({thing, of, start_of(thing) + place, value});
}

void RankMachine::find(const Effect& effect, const Action& action) {
  found_.clear();
  if (!exists(effect.when, action)) return;
  switch (per_of(effect.thing)) {
    case Per::unit:
    case Per::stage:
      return is_hidden(effect.thing) ? find_hidden(effect.thing, action) : find_of_units(effect.thing, action);
    case Per::message:
      if (action.stage < 0) {  // wait_sends has no stage: it is about every message that was sent
        for (size_t i = 0; i < size_of_thing(effect.thing); ++i) found(effect.thing, i);
      } else {
        const StageMessage message = carried_by(action);
        found(effect.thing, to_index(2 * message.stage + message.backward), action.microbatch);
      }
      return;
    case Per::rank:
      // All units have the same actions, and only the last one of the model makes the loss.
      if (effect.thing == Thing::loss && action.unit >= 0 && !plan_.units[to_index(action.unit)].is_models_last) return;
      return found(effect.thing, 0);
    default:
      return find_of_groups(effect, action);
  }
}

/// Hidden states between units are the next unit's input; those of a stage's last unit are the stage's output.
void RankMachine::find_hidden(Thing thing, const Action& action) {
  const bool backward = thing == Thing::output_gradient || thing == Thing::input_gradient;
  const bool taken = thing == Thing::input || thing == Thing::output_gradient;
  const Thing next = backward ? Thing::output_gradient : Thing::input;
  if (action.unit < 0) {
    if (!taken) return found(thing, to_index(action.stage), action.microbatch);
    const StagePlan& stage = stage_numbered(plan_, carried_by(action).receiver());
    return found(thing, backward ? stage.last - 1 : stage.first, action.microbatch);
  }
  const auto u = to_index(action.unit);
  const UnitPlan& unit = plan_.units[u];
  const bool ends_stage =
      backward ? unit.is_stages_first : u + 1 == plan_.units.size() || plan_.units[u + 1].is_stages_first;
  const bool from_nowhere = backward ? unit.is_models_last : unit.chain_index == 0;
  const bool to_nowhere = backward ? unit.chain_index == 0 : unit.is_models_last;
  if (taken ? from_nowhere : to_nowhere) return;
  if (taken) return found(thing, u, action.microbatch);
  ends_stage ? found(thing, to_index(unit.stage), action.microbatch)
             : found(next, backward ? u - 1 : u + 1, action.microbatch);
}

/// Of the action's unit; of its stage's units; or of all units that use its group, for all microbatches.
void RankMachine::find_of_units(Thing thing, const Action& action) {
  if (action.unit >= 0) return found(thing, to_index(action.unit), action.microbatch);
  if (action.group < 0) {
    if (thing != Thing::deferred) return;  // backward has released what it saved
    const StagePlan& stage = stage_numbered(plan_, action.stage);
    for (size_t u = stage.first; u < stage.last; ++u) found(thing, u, action.microbatch);
    return;
  }
  for (const size_t u : users_[to_index(action.group)]) {
    for (size_t m = 0; m < microbatches_; ++m) found(thing, u, static_cast<int>(m));
  }
}

void RankMachine::find_of_groups(const Effect& effect, const Action& action) {
  const auto add = [&](size_t g) {
    if (!exists_for(effect, g, action)) return;
    const WeightGroupPlan& group = plan_.groups[g];
    const Per per = per_of(effect.thing);
    if (per == Per::group) return found(effect.thing, g);
    const size_t slot = per == Per::weight_slot     ? group.weight_slot
                        : per == Per::gradient_slot ? group.gradient_slot
                                                    : group.message_slot;
    found(effect.thing, slot, -1, static_cast<int>(g) + 1);
  };
  if (action.unit >= 0) {
    for (const size_t g : plan_.units[to_index(action.unit)].groups) add(g);
  } else if (action.group >= 0) {
    const auto g = to_index(action.group);
    const size_t slot = plan_.groups[g].weight_slot;
    if (effect.does == Does::replaces && action.slot != static_cast<int>(slot)) {
      throw BrokenRule("the plan gives the group another slot");
    }
    if (effect.when != When::occupant) return add(g);
    if (group_in(slot) >= 0) add(to_index(group_in(slot)));
  } else if (action.stage < 0) {
    for (size_t g = 0; g < plan_.groups.size(); ++g) {
      if (plan_.groups[g].is_trained()) add(g);
    }
  }
}

bool RankMachine::exists(When when, const Action& action) const {
  switch (when) {
    case When::gradients_in_forward:
      return plan_.units[to_index(action.unit)].gradients_in_forward;
    case When::weights_in_backward:
      return plan_.units[to_index(action.unit)].weights_in_backward;
    case When::split_unit:
      return plan_.request.splits_backward();
    case When::one_group:
      return action.group >= 0;
    case When::all_groups:
      return action.group < 0;
    case When::steps_in_backward:
      return plan_.request.optimizer.early_step_in_backward;
    case When::whole_step:
      return plan_.request.optimizer.early_step_in_backward && action.group < 0;
    default:
      return true;
  }
}

bool RankMachine::exists_for(const Effect& effect, size_t g, const Action& action) const {
  const WeightGroupPlan& group = plan_.groups[g];
  const PlanRequest& request = plan_.request;
  const auto is_last_sum = [&] { return !group.axes.sums_replicas || has(Thing::replica_sum, g); };
  switch (effect.thing) {
    case Thing::weights:
    case Thing::slot:
    case Thing::own_slot:
      if (!group.gathers) return false;
      break;
    case Thing::narrow_slot:
      if (!group.narrows_gradient()) return false;
      break;
    case Thing::scales:
      if (action.unit >= 0 && group.scaled_weights() == 0) return false;
      if (effect.when == When::all_groups && !group.gathers_float8) return false;
      break;
    case Thing::adding:
      if (!group.is_trained()) return false;
      break;
    case Thing::order:  // an action about all groups ends the step if each is stepped by itself
      if (action.group < 0 && request.optimizer.early_step_in_backward) return false;
      break;
    default:
      break;
  }
  switch (effect.when) {
    case When::gathers_masters:
      return !plan_.copies_weights(group);
    case When::finds_scales:
      return !group.gathers || group.gathers_float8;
    case When::last_sum:
      return is_last_sum();
    case When::slot_is_read:
      return !request.training.enable_cpu_offload &&
             (group.narrows_gradient() ? is_last_sum() : has(Thing::scatter, g));
    default:
      return true;
  }
}

}  // namespace titan
