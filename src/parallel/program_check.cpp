#include "titan/parallel/program.h"

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

/// Goes through one rank's instructions and keeps what is there; each rule is a function.
class Checker {
 public:
  explicit Checker(const Plan& plan) : plan_(plan), groups_(plan.groups.size()) {
    for (size_t g = 0; g < groups_.size(); ++g) groups_[g].path = gradient_path(g);
    held_.assign(plan.weight_slots.size(), -1);
    bound_.assign(plan.weight_slots.size(), false);
  }

  void begin(const Program& program) {
    require(program.entry == state(), "its entry state differs from the state reached before it");
    ran_ = 0;
  }

  void visit(const Action& action) {
    for (const Action& part : action.kind == graph ? std::span<const Action>(action.parts) : std::span(&action, 1)) {
      if (part.unit >= 0) {
        unit(part);
      } else if (part.kind == refresh || part.kind == unshard || part.kind == wait_unshard || part.kind == reshard ||
                 part.kind == scale) {
        weights(part);
      } else if (part.kind == weight_gradient) {
        require(owed_.erase({part.stage, part.microbatch}) == 1, "no backward has put weight gradients off");
      } else if (leaves(part)[0].stage >= 0 || part.kind == wait_sends) {
        streams(part);
      } else {
        step_or_gradient(part);
      }
    }
  }

  void end(const Program& program) const {
    const bool passes = program.kind == ProgramKind::pass || program.kind == ProgramKind::last_pass;
    const int64_t together = passes ? plan_.request.microbatches_per_pass() : 1;
    const bool computes = program.kind != ProgramKind::update;
    require(ran_ == (computes ? together * std::ssize(plan_.units) : 0), "a unit has not run for every microbatch");
    require(streams_.empty() && arriving_.empty(), "a stream has not reached its end");
    require(sending_ == 0, "what was sent may not have left");
    require(kept_.empty() && owed_.empty(), "a backward is missing");
    require(std::none_of(bound_.begin(), bound_.end(), [](bool bound) { return bound; }), "weights are still in use");
    require(program.exit == state(), "its exit state differs from the state reached");
  }

  void finish() const {
    for (const Group& group : groups_) require(group.at == 0, "a step is not over");
  }

 private:
  struct Group {
    bool fresh = false, scaled = false;
    std::vector<ActionKind> path;  // what its gradient goes through in a step, in order
    size_t at = 0;                 // how far it is
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
      state.open.push_back(group.at > 0);
    }
    return state;
  }

  // ---- weights

  void weights(const Action& action) {
    if (action.kind == scale && action.group < 0) {
      for (size_t g = 0; g < groups_.size(); ++g) {
        require(!groups_[g].fresh, "the masters are those of the step before");
        groups_[g].scaled = groups_[g].scaled || plan_.groups[g].gathers_float8;
      }
      return;
    }
    Group& group = group_of(action.group);
    const bool comes_and_goes = plan_.gathers_weights();
    const size_t slot = slot_of(action.group);
    switch (action.kind) {
      case refresh:
        require(!group.fresh, "nothing has changed since the last time");
        group.fresh = true;
        if (!comes_and_goes || plan_of(action.group).gathers_float8) group.scaled = true;
        return;
      case unshard:
        require(action.slot == static_cast<int>(slot), "the plan gives the group another slot");
        if (!plan_.copies_weights(plan_of(action.group))) group.fresh = true;
        require(group.fresh, "its copies are stale");
        require(!bound_[slot], "a unit still uses the slot");
        require(gathering_.count(held_[slot]) == 0, "what the slot was filled with has not been used");
        require(held_[slot] != action.group, "the slot holds it already");
        held_[slot] = action.group;
        gathering_.insert(action.group);
        return;
      case wait_unshard:
        require(held_[slot] == action.group, "its slot holds something else");
        require(!bound_[slot], "it is in use already");
        gathering_.erase(action.group);
        bound_[slot] = true;
        return;
      case scale:
        require(bound_[slot] && held_[slot] == action.group, "its weights are not there");
        require(!group.scaled, "it has its scales");
        group.scaled = true;
        return;
      default:
        require(bound_[slot] && held_[slot] == action.group, "it is not in use");
        bound_[slot] = false;
    }
  }

  void require_weights(const UnitPlan& unit) {
    for (const size_t g : unit.groups) {
      require(groups_[g].fresh, "its weights are stale");
      require(plan_.groups[g].scaled_weights() == 0 || groups_[g].scaled, "its weights have no scales");
      if (!plan_.gathers_weights()) continue;
      const size_t slot = plan_.groups[g].weight_slot;
      require(bound_[slot] && held_[slot] == static_cast<int>(g), "its weights are not there");
    }
  }

  void require_open(const UnitPlan& unit) {
    for (const size_t g : unit.groups) require(groups_[g].at == 1, "its gradients have no storage, or are complete");
  }

  // ---- units and streams

  using Place = std::tuple<bool, int, int>;  // backward, stage, microbatch
  static constexpr int kDone = -2;           // in place of a unit: the stream has left the stage's last one

  /// Moves the hidden states at `place` from unit `u` to `next`; an error if they are not at `u`.
  void flow(const Place& place, int u, int next) {
    const auto found = streams_.find(place);
    require(found != streams_.end() && found->second == u, "its input is not there");
    found->second = next;
  }

  void unit(const Action& action) {
    const auto u = static_cast<size_t>(action.unit);
    const UnitPlan& unit = plan_.units[u];
    const StagePlan& stage = plan_.stages[plan_.stage_of(u)];
    const std::pair place{action.unit, action.microbatch};
    const bool models_last = unit.chain_index + 1 == plan_.chain_length;
    const Place forward_place{false, action.stage, action.microbatch},
        backward_place{true, action.stage, action.microbatch};
    const int next = u + 1 == stage.last ? kDone : action.unit + 1;
    switch (action.kind) {
      case forward:
        require(kept_.emplace(place, Kept::here).second, "it has run already");
        if (unit.gradients_in_forward) require_open(unit);
        if (models_last) require(!loss_summed_, "the loss has been summed");
        [[fallthrough]];
      case evaluate:
        ran_ += action.kind == evaluate;
        require_weights(unit);
        if (unit.chain_index == 0) streams_[forward_place] = action.unit;
        flow(forward_place, action.unit, next);
        if (models_last) streams_.erase(forward_place);
        return;
      case backward:
        ++ran_;
        require(kept_.count(place) && kept_.at(place) == Kept::here, "what its forward kept is not there");
        kept_.erase(place);
        if (unit.weights_in_backward) require_weights(unit);
        require_open(unit);
        if (models_last) streams_[backward_place] = action.unit;
        flow(backward_place, action.unit, u == stage.first ? kDone : action.unit - 1);
        if (unit.chain_index == 0) streams_.erase(backward_place);
        if (u == stage.first && plan_.request.splits_backward()) {
          owed_.insert({action.stage, action.microbatch});
        }
        return;
      default:
        return move(action.kind, place);
    }
  }

  enum class Kept { here, away, coming };
  void move(ActionKind kind, const std::pair<int, int>& place) {
    const auto found = kept_.find(place);
    require(found != kept_.end(), "it keeps nothing");
    const Kept from = kind == offload ? Kept::here : kind == fetch ? Kept::away : Kept::coming;
    require(found->second == from, "what it keeps is elsewhere");
    found->second = kind == offload ? Kept::away : kind == fetch ? Kept::coming : Kept::here;
  }

  int first_unit_of(bool backward, int stage) const {
    const StagePlan& span = stage_numbered(plan_, stage);
    return static_cast<int>(backward ? span.last - 1 : span.first);
  }

  void streams(const Action& action) {
    for (const Action& part : leaves(action)) {
      const bool back = part.kind == send_backward || part.kind == receive_backward || part.kind == wait_backward ||
                        part.kind == handoff_backward;
      const Place place{back, part.stage, part.microbatch};
      switch (part.kind) {
        case send_forward:
        case send_backward:
          flow(place, kDone, kDone);
          streams_.erase(place);
          ++sending_;
          break;
        case receive_forward:
        case receive_backward:
          require(!streams_.count(place) && arriving_.insert(place).second, "it is there already");
          break;
        case wait_forward:
        case wait_backward:
          require(arriving_.erase(place) == 1, "nothing is on its way");
          streams_[place] = first_unit_of(back, part.stage);
          break;
        case wait_sends:
          sending_ = 0;
          break;
        default: {
          flow(place, kDone, kDone);
          streams_.erase(place);
          const int to = part.stage + (back ? -1 : 1);
          streams_[{back, to, part.microbatch}] = first_unit_of(back, to);
        }
      }
    }
  }

  // ---- gradients and the step

  std::vector<ActionKind> gradient_path(size_t g) const {
    const PlanRequest& request = plan_.request;
    const WeightGroupPlan& group = plan_.groups[g];
    std::vector<ActionKind> path{open_gradient, close_gradient};
    if (request.shards() > 1) path.insert(path.end(), {reduce_scatter, wait_reduce});
    if (request.replicates()) path.insert(path.end(), {all_reduce, wait_reduce});
    if (group.partial_numel() > 0) path.push_back(reduce_partial);
    if (group.is_tied) path.push_back(add_tied);
    path.push_back(squares);
    if (!request.step_in_backward && request.cpu_offload) path.push_back(to_host);
    path.insert(path.end(), {norm, control});
    if (request.step_in_backward && request.cpu_offload) path.push_back(to_host);
    if (!request.step_in_backward) path.push_back(before_change);
    if (request.cpu_offload) path.push_back(wait_host);
    path.insert(path.end(), {step, zero_gradient});
    return path;
  }

  void step_or_gradient(const Action& action) {
    if (action.kind == loss_sum) {
      require(!std::exchange(loss_summed_, true), "the loss has been summed");
      return;
    }
    if (action.kind == control) require(loss_summed_, "whether the loss is finite is not known");
    if (action.group >= 0) return go_on(action.group, action.kind);
    if (plan_.request.step_in_backward) return in_backward(action.kind);
    for (size_t g = 0; g < groups_.size(); ++g) go_on(static_cast<int>(g), action.kind);
    if (action.kind == zero_gradient) loss_summed_ = false;
  }

  /// What is left for the whole step when each group has been stepped by itself.
  void in_backward(ActionKind kind) {
    if (kind == before_change) {
      require(!std::exchange(may_change_, true), "it has been asked for");
      return;
    }
    for (const Group& group : groups_) require(group.at == 0, "a group has not been stepped");
    if (kind == control) require(!std::exchange(judged_, true), "it is known");
    if (kind != zero_gradient) return;
    require(judged_, "no CONTROL comes before it");
    loss_summed_ = may_change_ = judged_ = false;
  }

  void go_on(int number, ActionKind kind) {
    Group& group = group_of(number);
    require(group.path[group.at] == kind, "its gradient is not at that point");
    const WeightGroupPlan& plan = plan_of(number);
    const bool first_leg = kind == wait_reduce && group.path[group.at - 1] == reduce_scatter;
    const bool last_leg = kind == wait_reduce && group.path[group.at + 1] != all_reduce;
    const bool in_slot = plan_.gathers_weights();
    if (kind == open_gradient && in_slot) take(gradient_slots_, plan.gradient_slot, number);
    if (kind == close_gradient) complete(number);
    const bool begins = kind == reduce_scatter || (kind == all_reduce && plan_.request.shards() == 1);
    if (begins && plan.narrows_gradient()) take(message_slots_, plan.message_slot, number);
    if (last_leg && plan.narrows_gradient()) message_slots_.erase(plan.message_slot);
    const bool sums_leave = !plan_.request.cpu_offload && (plan.narrows_gradient() ? last_leg : first_leg);
    if (in_slot && (sums_leave || kind == to_host)) gradient_slots_.erase(plan.gradient_slot);
    if (kind == step) {
      require(!plan_.request.step_in_backward || may_change_, "a save may still need what it changes");
      written(number);
    }
    group.at = kind == zero_gradient ? 0 : group.at + 1;
  }

  static void take(std::map<size_t, int>& slots, size_t slot, int group) {
    require(slots.emplace(slot, group).second, "another group's gradients are in the slot");
  }

  /// No unit will add to the gradient any more.
  void complete(int group) const {
    for (const auto& [place, where] : kept_) {
      const std::vector<size_t>& used = plan_.units[static_cast<size_t>(place.first)].groups;
      require(std::count(used.begin(), used.end(), static_cast<size_t>(group)) == 0, "a backward adds to it later");
    }
    for (const auto& [number, microbatch] : owed_) {
      const StagePlan& stage = stage_numbered(plan_, number);
      const size_t unit = plan_of(group).reduce_after;
      require(unit < stage.first || unit >= stage.last, "weight gradients are still to be made");
    }
  }

  void written(int number) {
    Group& group = group_of(number);
    group.fresh = group.scaled = false;
    if (!plan_.gathers_weights()) return;
    require(!bound_[slot_of(number)] || held_[slot_of(number)] != number, "a unit still uses its weights");
    std::replace(held_.begin(), held_.end(), number, -1);
  }

  const Plan& plan_;
  std::vector<Group> groups_;
  std::vector<int> held_;    // by weight slot: the group, -1: none
  std::vector<bool> bound_;  // by weight slot: units may use it now
  std::set<int> gathering_;  // groups whose weights are on their way
  std::map<size_t, int> gradient_slots_, message_slots_;
  std::map<Place, int> streams_;  // the unit that takes it next
  std::set<Place> arriving_;
  std::map<std::pair<int, int>, Kept> kept_;  // unit and microbatch: what its backward needs
  std::set<std::pair<int, int>> owed_;        // stage and microbatch: weight gradients that were put off
  int sending_ = 0;
  int64_t ran_ = 0;  // backwards, or evaluations, in this program
  bool loss_summed_ = false, may_change_ = false, judged_ = false;
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

std::vector<Program> checked_programs(const Plan& plan, bool graphs) {
  const int64_t passes = std::min<int64_t>(plan.request.accumulation / plan.request.microbatches_per_pass() - 1, 2);
  std::vector<Program> programs;
  auto add = [&](ProgramKind kind) {
    const WeightState entry = programs.empty() ? stale_state(plan) : programs.back().exit;
    programs.push_back(expand(plan, kind, entry, graphs));
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
