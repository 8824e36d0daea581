#include "titan/plan/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>

#include "plan_parts.h"

namespace titan {
namespace {

using enum ActionKind;

struct Problem : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void require(bool condition, const char* what) {
  if (!condition) throw Problem(what);
}

/// Walks through one rank's instructions and tracks weights, hidden states and gradients.
class Checker {
 public:
  explicit Checker(const Plan& plan) : plan_(plan), groups_(plan.groups.size()) {
    for (size_t g = 0; g < groups_.size(); ++g) groups_[g].lifecycle = gradient_lifecycle(g);
    held_.assign(plan.weight_slots.size(), -1);
    in_use_.assign(plan.weight_slots.size(), false);
  }

  void begin(const Program& program) {
    require(program.entry == state(), "its entry state is not the state reached before it");
    finished_units_ = 0;
  }

  void visit(const Action& action) {
    if (action.kind == graph) {
      for (const Action& part : action.parts) unit(part);
    } else if (action.unit >= 0) {
      unit(action);
    } else if (action.kind == weight_gradient) {
      require(deferred_.erase({action.stage, action.microbatch}) == 1, "no backward has deferred its weight gradients");
    } else if (leaves(action)[0].stage >= 0 || action.kind == wait_sends) {
      for (const Action& part : leaves(action)) transfer(part);
    } else if (action.kind == scale && action.group < 0) {
      scale_all();
    } else if (action.kind == refresh || action.kind == unshard || action.kind == wait_unshard ||
               action.kind == scale || action.kind == reshard) {
      weights(action);
    } else {
      gradient_or_step(action);
    }
  }

  void end(const Program& program) const {
    const bool passes = program.kind == ProgramKind::pass || program.kind == ProgramKind::last_pass;
    const int64_t microbatches = passes ? plan_.request.microbatches_per_pass() : 1;
    const int64_t runs = program.kind == ProgramKind::update ? 0 : microbatches * std::ssize(plan_.units);
    require(finished_units_ == runs, "a unit has not run for every microbatch");
    require(next_unit_.empty() && receiving_.empty(), "hidden states or gradients between units are left over");
    require(unfinished_sends_ == 0, "a send was not waited for");
    require(activations_.empty() && deferred_.empty(), "a backward is missing");
    require(std::none_of(in_use_.begin(), in_use_.end(), [](bool used) { return used; }), "a RESHARD is missing");
    require(program.exit == state(), "its exit state is not the state reached");
  }

  void finish() const {
    for (const Group& group : groups_) require(group.done == 0, "the last step has not ended");
  }

 private:
  struct Group {
    bool fresh = false, scaled = false;
    std::vector<ActionKind> lifecycle;  // the gradient's instructions in a step, in order
    size_t done = 0;                    // number of these already seen
  };
  const WeightGroupPlan& plan_of(int group) const { return plan_.groups[static_cast<size_t>(group)]; }
  Group& group_of(int group) { return groups_[static_cast<size_t>(group)]; }
  size_t slot_of(int group) const { return plan_of(group).weight_slot; }

  WeightState state() const {
    WeightState state;
    state.held = held_;
    for (const Group& group : groups_) {
      state.fresh.push_back(group.fresh);
      state.scaled.push_back(group.scaled);
      state.open.push_back(group.done > 0);
    }
    return state;
  }

  // ---- weights

  void scale_all() {
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (!plan_.groups[g].is_trained()) continue;
      require(!groups_[g].fresh, "no optimizer step before it");
      groups_[g].scaled = groups_[g].scaled || plan_.groups[g].gathers_float8;
    }
  }

  void weights(const Action& action) {
    Group& group = group_of(action.group);
    const size_t slot = slot_of(action.group);
    const auto is_unsharded = [&] { return in_use_[slot] && held_[slot] == action.group; };
    switch (action.kind) {
      case refresh:
        require(!group.fresh, "its weights have not changed since the last REFRESH");
        group.fresh = true;
        if (!plan_.gathers_weights() || plan_of(action.group).gathers_float8) group.scaled = true;
        return;
      case unshard:
        require(action.slot == static_cast<int>(slot), "the plan gives the group another slot");
        if (!plan_.copies_weights(plan_of(action.group))) group.fresh = true;
        require(group.fresh, "its compute copies are stale");
        require(!in_use_[slot], "the slot is in use");
        require(gathering_.count(held_[slot]) == 0, "slot is overwritten before its gather was waited for");
        require(held_[slot] != action.group, "the slot already holds the group");
        held_[slot] = action.group;
        gathering_.insert(action.group);
        return;
      case wait_unshard:
        require(held_[slot] == action.group, "the slot holds another group");
        require(!in_use_[slot], "its weights are already unsharded");
        gathering_.erase(action.group);
        in_use_[slot] = true;
        return;
      case scale:
        require(is_unsharded(), "its weights are not unsharded");
        require(!group.scaled, "its weights already have their scales");
        group.scaled = true;
        return;
      default:
        require(is_unsharded(), "its weights are not unsharded");
        in_use_[slot] = false;
    }
  }

  void require_weights(const UnitPlan& unit) {
    for (const size_t g : unit.groups) {
      require(groups_[g].fresh, "its weights are stale");
      require(plan_.groups[g].scaled_weights() == 0 || groups_[g].scaled, "its weights have no float8 scales");
      if (!plan_.gathers_weights()) continue;
      const size_t slot = plan_.groups[g].weight_slot;
      require(in_use_[slot] && held_[slot] == static_cast<int>(g), "its weights are not unsharded");
    }
  }

  void require_open(const UnitPlan& unit) {
    for (const size_t g : unit.groups) {
      require(groups_[g].done == 1 || !plan_.groups[g].is_trained(), "its gradient is not open");
    }
  }

  // ---- units, and hidden states or gradients between them

  using Place = std::tuple<bool, int, int>;  // backward, stage, microbatch
  static constexpr int kStageDone = -2;      // in place of a unit: the stage's last unit has run

  /// Passes the data at `place` from unit `u` to `next`; an error if `u` is not the unit that is due.
  void advance(const Place& place, int u, int next) {
    const auto found = next_unit_.find(place);
    require(found != next_unit_.end() && found->second == u, "its input is missing");
    found->second = next;
  }

  void unit(const Action& action) {
    const auto u = static_cast<size_t>(action.unit);
    const UnitPlan& unit = plan_.units[u];
    const std::pair run{action.unit, action.microbatch};
    const bool ends_stage = u + 1 == plan_.units.size() || plan_.units[u + 1].is_stages_first;
    const Place forward_place{false, action.stage, action.microbatch},
        backward_place{true, action.stage, action.microbatch};
    switch (action.kind) {
      case forward:
        require(activations_.emplace(run, Where::device).second, "it has already run");
        if (unit.gradients_in_forward) require_open(unit);
        if (unit.is_models_last) require(!loss_summed_, "the loss has already been summed");
        [[fallthrough]];
      case evaluate:
        finished_units_ += action.kind == evaluate;
        require_weights(unit);
        if (unit.chain_index == 0) next_unit_[forward_place] = action.unit;
        advance(forward_place, action.unit, ends_stage ? kStageDone : action.unit + 1);
        if (unit.is_models_last) next_unit_.erase(forward_place);
        return;
      case backward:
        ++finished_units_;
        require(activations_.count(run) && activations_.at(run) == Where::device, "its activations are not there");
        activations_.erase(run);
        if (unit.weights_in_backward) require_weights(unit);
        require_open(unit);
        if (unit.is_models_last) next_unit_[backward_place] = action.unit;
        advance(backward_place, action.unit, unit.is_stages_first ? kStageDone : action.unit - 1);
        if (unit.chain_index == 0) next_unit_.erase(backward_place);
        if (unit.is_stages_first && plan_.request.splits_backward())
          deferred_.insert({action.stage, action.microbatch});
        return;
      default:
        return move(action.kind, run);
    }
  }

  enum class Where { device, host, fetching };
  void move(ActionKind kind, const std::pair<int, int>& run) {
    const auto found = activations_.find(run);
    require(found != activations_.end(), "its forward has not run");
    const Where from = kind == offload ? Where::device : kind == fetch ? Where::host : Where::fetching;
    require(found->second == from, "its activations have already been moved, or not yet");
    found->second = kind == offload ? Where::host : kind == fetch ? Where::fetching : Where::device;
  }

  /// Makes the stage runnable: its first unit is next, or its last in backward.
  void make_input_available(bool backward, int stage, int microbatch) {
    const StagePlan& span = stage_numbered(plan_, stage);
    next_unit_[{backward, stage, microbatch}] = static_cast<int>(backward ? span.last - 1 : span.first);
  }

  void transfer(const Action& action) {
    if (action.kind == wait_sends) {
      unfinished_sends_ = 0;
      return;
    }
    const StageMessage message = carried_by(action);
    const Place place{message.backward, action.stage, action.microbatch};
    if (is_receive(action.kind)) {
      require(!next_unit_.count(place) && receiving_.insert(place).second, "it has already been received");
    } else if (action.kind == wait_forward || action.kind == wait_backward) {
      require(receiving_.erase(place) == 1, "no RECEIVE comes before it");
      make_input_available(message.backward, action.stage, action.microbatch);
    } else {
      advance(place, kStageDone, kStageDone);
      next_unit_.erase(place);
      is_send(action.kind) ? void(++unfinished_sends_)
                           : make_input_available(message.backward, message.receiver(), action.microbatch);
    }
  }

  // ---- gradients and the step

  std::vector<ActionKind> gradient_lifecycle(size_t g) const {
    const PlanRequest& request = plan_.request;
    const WeightGroupPlan& group = plan_.groups[g];
    if (!group.is_trained()) return {};
    std::vector<ActionKind> kinds{open_gradient, close_gradient};
    if (request.shards() > 1) kinds.insert(kinds.end(), {reduce_scatter, wait_reduce});
    if (request.replicates()) kinds.insert(kinds.end(), {all_reduce, wait_reduce});
    if (group.partial_numel() > 0) kinds.push_back(reduce_partial);
    if (group.is_tied) kinds.push_back(add_tied);
    kinds.push_back(squares);
    if (!request.step_in_backward && request.cpu_offload) kinds.push_back(to_host);
    kinds.insert(kinds.end(), {norm, control});
    if (request.step_in_backward && request.cpu_offload) kinds.push_back(to_host);
    if (!request.step_in_backward) kinds.push_back(before_change);
    if (request.cpu_offload) kinds.push_back(wait_host);
    kinds.insert(kinds.end(), {step, zero_gradient});
    return kinds;
  }

  void gradient_or_step(const Action& action) {
    if (action.kind == loss_sum) {
      require(!std::exchange(loss_summed_, true), "the loss has already been summed");
      return;
    }
    if (action.kind == control) require(loss_summed_, "no LOSS_SUM comes before it");
    if (action.group >= 0) return advance_gradient(action.group, action.kind);
    if (plan_.request.step_in_backward) return end_step_in_backward(action.kind);
    for (int g = 0; g < std::ssize(groups_); ++g) {
      if (plan_of(g).is_trained()) advance_gradient(g, action.kind);
    }
    if (action.kind == zero_gradient) loss_summed_ = false;
  }

  /// The instructions that remain for the whole step after each group has been stepped by itself.
  void end_step_in_backward(ActionKind kind) {
    if (kind == before_change) {
      require(!std::exchange(changes_allowed_, true), "it has already been done");
      return;
    }
    for (const Group& group : groups_) require(group.done == 0, "a group has not been stepped");
    if (kind == control) require(!std::exchange(control_done_, true), "it has already been done");
    if (kind != zero_gradient) return;
    require(control_done_, "no CONTROL comes before it");
    loss_summed_ = changes_allowed_ = control_done_ = false;
  }

  void advance_gradient(int number, ActionKind kind) {
    Group& group = group_of(number);
    const std::vector<ActionKind>& kinds = group.lifecycle;
    require(!kinds.empty(), "a frozen group has no gradient");
    if (kinds[group.done] != kind) {
      throw Problem(fmt::format("the gradient of {} needs {} first", plan_of(number).name, word_of(kinds[group.done])));
    }
    const WeightGroupPlan& plan = plan_of(number);
    const bool ends_scatter = kind == wait_reduce && kinds[group.done - 1] == reduce_scatter;
    const bool ends_reduction = kind == wait_reduce && kinds[group.done + 1] != all_reduce;
    const bool in_slot = plan_.gathers_weights();
    if (kind == open_gradient && in_slot) occupy(gradient_slots_, plan.gradient_slot, number);
    if (kind == close_gradient) require_complete(number);
    const bool begins = kind == reduce_scatter || (kind == all_reduce && plan_.request.shards() == 1);
    if (begins && plan.narrows_gradient()) occupy(message_slots_, plan.message_slot, number);
    if (ends_reduction && plan.narrows_gradient()) message_slots_.erase(plan.message_slot);
    const bool frees = !plan_.request.cpu_offload && (plan.narrows_gradient() ? ends_reduction : ends_scatter);
    if (in_slot && (frees || kind == to_host)) gradient_slots_.erase(plan.gradient_slot);
    if (kind == step) {
      require(!plan_.request.step_in_backward || changes_allowed_, "no BEFORE_CHANGE comes before it");
      masters_changed(number);
    }
    group.done = kind == zero_gradient ? 0 : group.done + 1;
  }

  static void occupy(std::map<size_t, int>& slots, size_t slot, int group) {
    require(slots.emplace(slot, group).second, "the slot holds another group's gradients");
  }

  /// Checks that no unit will add to the gradient.
  void require_complete(int group) const {
    for (const auto& [run, where] : activations_) {
      const std::vector<size_t>& used = plan_.units[static_cast<size_t>(run.first)].groups;
      require(std::count(used.begin(), used.end(), static_cast<size_t>(group)) == 0, "a later backward adds to it");
    }
    for (const auto& [number, microbatch] : deferred_) {
      const StagePlan& stage = stage_numbered(plan_, number);
      const size_t unit = plan_of(group).reduce_after;
      require(unit < stage.first || unit >= stage.last, "deferred weight gradients are missing");
    }
  }

  void masters_changed(int number) {
    Group& group = group_of(number);
    group.fresh = group.scaled = false;
    if (!plan_.gathers_weights()) return;
    require(!in_use_[slot_of(number)] || held_[slot_of(number)] != number, "a unit uses its weights");
    std::replace(held_.begin(), held_.end(), number, -1);
  }

  const Plan& plan_;
  std::vector<Group> groups_;
  std::vector<int> held_;     // by weight slot: the group, -1: none
  std::vector<bool> in_use_;  // by weight slot: between WAIT_UNSHARD and RESHARD
  std::set<int> gathering_;   // groups between UNSHARD and WAIT_UNSHARD
  std::map<size_t, int> gradient_slots_, message_slots_;
  std::map<Place, int> next_unit_;  // the unit that takes the hidden states or gradients
  std::set<Place> receiving_;
  std::map<std::pair<int, int>, Where> activations_;  // by unit and microbatch: what backward needs
  std::set<std::pair<int, int>> deferred_;            // stage and microbatch: deferred weight gradients
  int unfinished_sends_ = 0;
  int64_t finished_units_ = 0;  // backwards, or evaluations, in this program
  bool loss_summed_ = false, changes_allowed_ = false, control_done_ = false;
};

}  // namespace

std::string program_problem(const Plan& plan, std::span<const Program> programs) {
  Checker checker(plan);
  for (size_t p = 0; p < programs.size(); ++p) {
    const Action* at = nullptr;
    try {
      checker.begin(programs[p]);
      for (const Action& action : programs[p].actions) {
        at = &action;
        checker.visit(action);
      }
      at = nullptr;
      checker.end(programs[p]);
      if (p + 1 == programs.size()) checker.finish();
    } catch (const Problem& problem) {
      const std::string where =
          at ? fmt::format("instruction {} ({})", at - programs[p].actions.data() + 1, to_line(plan, *at))
             : "as a whole";
      return fmt::format("program {}, {}: {}", p + 1, where, problem.what());
    }
  }
  return {};
}

std::vector<Program> checked_programs(const Plan& plan) {
  const int64_t passes = std::min<int64_t>(plan.request.accumulation / plan.request.microbatches_per_pass() - 1, 2);
  std::vector<Program> programs;
  auto add = [&](ProgramKind kind) {
    const WeightState entry = programs.empty() ? stale_state(plan) : programs.back().exit;
    programs.push_back(expand(plan, kind, entry));
  };
  auto add_step = [&] {
    for (int64_t pass = 0; pass < passes; ++pass) add(ProgramKind::pass);
    add(ProgramKind::last_pass);
    add(ProgramKind::update);
  };
  add(ProgramKind::evaluation);
  add_step();
  add_step();
  add(ProgramKind::evaluation);
  add(ProgramKind::evaluation);
  add_step();
  return programs;
}

}  // namespace titan
