#include "titan/plan/program.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "plan_parts.h"
#include "rank_machine.h"
#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/schedule/table.h"

namespace titan {
namespace {

using enum ActionKind;

/// The first unit that uses weights in the rank's next stage action after `actions[i]`.
std::optional<size_t> unit_after(const Plan& plan, std::span<const Action> actions, size_t i) {
  const auto runs_units = [](const Action& action) {
    return is_compute(action.kind) && action.kind != weight_gradient;
  };
  const auto next = std::find_if(actions.begin() + static_cast<std::ptrdiff_t>(i) + 1, actions.end(), runs_units);
  if (next == actions.end()) return std::nullopt;
  const StagePlan& stage = stage_numbered(plan, next->stage);
  if (next->kind == forward) return stage.first;
  return plan.units[stage.last - 1].weights_in_backward ? std::optional(stage.last - 1) : std::nullopt;
}

/// Builds one program from front to end. The rank machine knows the weight state at that point.
class Expansion {
 public:
  Expansion(const Plan& plan, const WeightState& entry, ProgramKind kind)
      : plan_(plan), rank_(plan, entry, RankMachine::Tracks::weight_state) {
    program_.entry = entry;
    program_.kind = kind;
  }

  Program finish() {
    program_.exit = rank_.state();
    return std::move(program_);
  }

  /// Stage actions, then the instructions that end the last pass of a step.
  void pass(std::span<const Action> table, bool is_last) {
    const bool pipeline = plan_.request.pipeline.has_value();
    const std::vector<Action> actions = split_overlapped({{table.begin(), table.end()}})[0];
    for (size_t i = 0; i < actions.size(); ++i) {
      const Action& action = actions[i];
      next_unit_ = unit_after(plan_, actions, i);
      // When stepping in backward, an update depends on whether the loss is finite.
      if (is_last && !pipeline && action.kind == backward) add({.kind = loss_sum});
      add_stage_action(action, is_last);
    }
    if (!pipeline) return;
    add({.kind = wait_sends});
    if (!is_last) return;
    for (size_t g = plan_.groups.size(); g-- > 0;) {
      if (!group(g).is_tied || !group(g).is_trained()) continue;
      add_group(add_tied, g);
      use_gradient(g);
    }
    add({.kind = loss_sum});
  }

  /// Forward and backward of all units as one graph; reductions after it.
  void graph_pass(bool is_last) {
    const size_t units = plan_.units.size();
    for (size_t u = 0; u < units; ++u) {
      start_unshard(u);
      open_gradients(u);
    }
    Action both{.kind = graph, .microbatch = 0};
    for (size_t u = 0; u < units; ++u) both.parts.push_back(unit_action(forward, u, 0));
    for (size_t u = units; u-- > 0;) both.parts.push_back(unit_action(backward, u, 0));
    add(std::move(both));
    if (!is_last) return;
    for (size_t u = units; u-- > 0;) reduce_units(u, u + 1);
    finish_reductions();
    add({.kind = loss_sum});
  }

  void update() {
    const PlanRequest& request = plan_.request;
    // Otherwise use_gradient() has added each group's squares, before its gradient went to the host or was stepped.
    if (!request.training.enable_cpu_offload && !request.optimizer.early_step_in_backward) add({.kind = squares});
    if (!request.optimizer.early_step_in_backward) add({.kind = norm});
    add({.kind = control});
    if (!request.optimizer.early_step_in_backward) {
      add({.kind = before_change});  // overlaps with gradients that are being copied to the host
      if (request.training.enable_cpu_offload) add({.kind = wait_host});
      update_matrices();
      add({.kind = step});
    }
    if (plan_.precomputes_scales()) add({.kind = scale});
    add({.kind = zero_gradient});
  }

  /// One batch through the stages, one after the other.
  void evaluation() {
    bool sends = false;
    for (const StagePlan& stage : plan_.stages) {
      const auto number = static_cast<int>(stage.number);
      if (number > 0 && !plan_.has_stage(number - 1)) {
        add({receive_forward, number, 0});
        add({wait_forward, number, 0});
      }
      for (size_t u = stage.first; u < stage.last; ++u) {
        wait_unshard_of(u);
        if (u + 1 < stage.last) start_unshard(u + 1);
        add(unit_action(evaluate, u, 0));
        reshard_units(u);
      }
      if (plan_.units[stage.last - 1].is_models_last) continue;
      const bool local = plan_.has_stage(number + 1);
      add({local ? handoff_forward : send_forward, number, 0});
      sends = sends || !local;
    }
    if (sends) add({.kind = wait_sends});
  }

 private:
  const WeightGroupPlan& group(size_t g) const { return plan_.groups[g]; }

  void add(Action action) {
    rank_.run(action);
    program_.actions.push_back(std::move(action));
  }
  void add_group(ActionKind kind, size_t g, std::optional<size_t> slot = std::nullopt) {
    add({.kind = kind, .group = static_cast<int>(g), .slot = slot ? static_cast<int>(*slot) : -1});
  }
  Action unit_action(ActionKind kind, size_t u, int microbatch) const {
    return {.kind = kind, .stage = plan_.units[u].stage, .microbatch = microbatch, .unit = static_cast<int>(u)};
  }

  // ---- stages

  void add_stage_action(const Action& action, bool is_last) {
    const int stage = action.stage, microbatch = action.microbatch;
    switch (action.kind) {
      case forward:
        return forward_stage(stage, microbatch);
      case backward:
      case input_gradient:
        backward_stage(stage, microbatch, is_last);
        if (action.kind == backward && plan_.request.splits_backward()) add({weight_gradient, stage, microbatch});
        if (stage > 0 && plan_.has_stage(stage - 1)) add({handoff_backward, stage, microbatch});
        return;
      case reduce_grad: {
        if (!is_last) return;
        const StagePlan& span = stage_numbered(plan_, stage);
        reduce_units(span.first, span.last);
        return finish_reductions();
      }
      default:  // transfers and weight gradients are the same in a table and in a program
        return add(action);
    }
  }

  void forward_stage(int number, int microbatch) {
    const StagePlan& stage = stage_numbered(plan_, number);
    if (number > 0 && !plan_.has_stage(number - 1)) add({wait_forward, number, microbatch});
    for (size_t u = stage.first; u < stage.last; ++u) {
      wait_unshard_of(u);
      u + 1 < stage.last ? start_unshard(u + 1) : prefetch_next_action(plan_.units[u].groups);
      if (plan_.units[u].gradients_in_forward) open_gradients(u);
      add(unit_action(forward, u, microbatch));
      if (plan_.units[u].offloaded) add(unit_action(offload, u, microbatch));
      reshard_units(u);
    }
    prefetch_next_action();
    if (plan_.has_stage(number + 1)) add({handoff_forward, number, microbatch});
  }

  void backward_stage(int number, int microbatch, bool is_last) {
    const StagePlan& stage = stage_numbered(plan_, number);
    if (!plan_.units[stage.last - 1].is_models_last && !plan_.has_stage(number + 1)) {
      add({wait_backward, number, microbatch});
    }
    for (size_t u = stage.last; u-- > stage.first;) {
      const UnitPlan& unit = plan_.units[u];
      if (unit.weights_in_backward) wait_unshard_of(u);
      if (u > stage.first && plan_.units[u - 1].weights_in_backward) start_unshard(u - 1);
      if (u == stage.first) prefetch_next_action(unit.groups);
      open_gradients(u);
      if (unit.offloaded) {
        fetch_once(u, microbatch);
        add(unit_action(wait_fetch, u, microbatch));
      }
      if (u > stage.first && plan_.units[u - 1].offloaded) fetch_once(u - 1, microbatch);
      add(unit_action(backward, u, microbatch));
      if (unit.weights_in_backward) reshard_units(u);
      if (is_last && !plan_.request.pipeline) reduce_units(u, u + 1);
    }
    prefetch_next_action();
    finish_reductions();
  }

  void fetch_once(size_t u, int microbatch) {
    if (fetched_.emplace(u, microbatch).second) add(unit_action(fetch, u, microbatch));
  }

  // ---- weights

  void start_unshard(size_t u) {
    for (size_t g : plan_.units[u].groups) {
      const bool gathers = group(g).gathers;
      const size_t slot = group(g).weight_slot;
      if (gathers && rank_.group_in(slot) == static_cast<int>(g)) continue;
      const bool copies = !gathers || plan_.copies_weights(group(g));
      if (copies && !rank_.has(Thing::copies, g)) add_group(refresh, g);
      if (gathers) add_group(unshard, g, slot);
    }
  }

  /// Starts to gather the first unit of the next stage action, unless a group in `used` has its slot.
  void prefetch_next_action(std::span<const size_t> used = {}) {
    if (!next_unit_ || !plan_.gathers_weights()) return;
    for (size_t next : plan_.units[*next_unit_].groups) {
      for (size_t g : used) {
        const bool both_gather = group(next).gathers && group(g).gathers;
        if (next != g && both_gather && group(next).weight_slot == group(g).weight_slot) return;
      }
    }
    start_unshard(*next_unit_);
  }

  void wait_unshard_of(size_t u) {
    start_unshard(u);
    for (size_t g : plan_.units[u].groups) {
      if (!group(g).gathers) continue;
      add_group(wait_unshard, g, group(g).weight_slot);
      if (group(g).scaled_weights() > 0 && !rank_.has(Thing::scales, g)) add_group(scale, g);
    }
  }

  void reshard_units(size_t u) {
    for (size_t g : plan_.units[u].groups) {
      if (group(g).gathers) add_group(reshard, g, group(g).weight_slot);
    }
  }

  // ---- gradients

  void open_gradients(size_t u) {
    for (size_t g : plan_.units[u].groups) {
      if (rank_.has(Thing::gradient, g) || !group(g).is_trained()) continue;
      group(g).gathers ? add_group(open_gradient, g, group(g).gradient_slot) : add_group(open_gradient, g);
    }
  }

  /// Starts the reductions of the groups whose gradients are complete after the backward of units [first, last).
  void reduce_units(size_t first, size_t last) {
    for (size_t g = plan_.groups.size(); g-- > 0;) {
      const bool is_complete = group(g).reduce_after >= first && group(g).reduce_after < last;
      if (is_complete && group(g).is_trained()) reduce(g);
    }
  }

  // A group's reduction overlaps with the next unit's backward. Its slot is free before the unit after the next one
  // needs it. The all-reduce over replicas overlaps with one more unit's backward. With one shard and CPU offload there
  // is nothing to reduce, so the gradient is complete at once.
  void reduce(size_t g) {
    add_group(close_gradient, g);
    const bool scatters = group(g).axes.shards > 1;
    if (scatters) add_group(reduce_scatter, g);
    if (!group(g).gathers && group(g).axes.sums_replicas) add_group(all_reduce, g);
    advance_reductions();
    scattering_ = g;
    if (group(g).gathers && !scatters) advance_reductions();
  }

  /// Starts the all-reduce of the newest reduction, and ends the previous all-reduce.
  void advance_reductions() {
    const std::optional<size_t> newest = std::exchange(scattering_, std::nullopt);
    bool overlaps = false;  // its all-reduce overlaps with one more backward, unless another group needs the slot
    if (newest && group(*newest).gathers) {
      const GroupAxes& axes = group(*newest).axes;
      if (axes.shards > 1) add_group(wait_reduce, *newest);
      if (axes.sums_replicas) add_group(all_reduce, *newest);
      overlaps = axes.sums_replicas && !group(*newest).narrows_gradient() && !plan_.request.training.enable_cpu_offload;
    }
    if (replicating_) end_reduction(*std::exchange(replicating_, std::nullopt));
    if (overlaps) {
      replicating_ = newest;
    } else if (newest) {
      end_reduction(*newest);
    }
  }

  void end_reduction(size_t g) {
    if (group(g).axes.sums_replicas) add_group(wait_reduce, g);
    if (group(g).partial_numel() > 0) add_group(reduce_partial, g);
    if (!group(g).is_tied) use_gradient(g);
  }

  // Twice: the newest reduction may have its all-reduce ahead.
  void finish_reductions() {
    advance_reductions();
    advance_reductions();
  }

  /// Instructions that use each group's gradient as soon as it is complete.
  void use_gradient(size_t g) {
    const bool host = plan_.request.training.enable_cpu_offload, steps = plan_.request.optimizer.early_step_in_backward;
    if (host || steps) add_group(squares, g);
    if (steps) {
      add_group(norm, g);
      add_group(control, g);
    }
    if (host) add_group(to_host, g);
    if (!steps) return;
    if (!std::exchange(changes_, true)) add({.kind = before_change});
    if (host) add({.kind = wait_host, .group = static_cast<int>(g)});
    add_group(step, g);
    add_group(zero_gradient, g);
  }

  /// All ranks iterate at the same time: a rank that waited for the updates of one group before it sent its parts of a
  /// later one would keep the owners of that one waiting.
  void update_matrices() {
    for (const ActionKind kind : {collect, transform, wait_transform}) {
      for (size_t g = 0; g < plan_.groups.size(); ++g) {
        if (!group(g).matrices.empty()) add_group(kind, g);
      }
    }
  }

  const Plan& plan_;
  RankMachine rank_;
  Program program_;
  std::set<std::pair<size_t, int>> fetched_;  // unit and microbatch
  std::optional<size_t> scattering_;          // the group whose reduction was started last
  std::optional<size_t> replicating_;         // the previous one, in its all-reduce
  std::optional<size_t> next_unit_;           // the first unit of the next stage action
  bool changes_ = false;                      // weights or moments have changed
};

}  // namespace

WeightState stale_state(const Plan& plan) {
  const size_t groups = plan.groups.size();
  return {std::vector<int>(plan.weight_slots.size(), -1), std::vector<bool>(groups, false),
          std::vector<bool>(groups, false), std::vector<bool>(groups, false)};
}

WeightState settled_state(const Plan& plan) { return step_programs(plan, stale_state(plan)).back().program.exit; }

Program expand(const Plan& plan, ProgramKind kind, const WeightState& entry) {
  Expansion expansion(plan, entry, kind);
  const bool is_last = kind == ProgramKind::last_pass;
  if (kind == ProgramKind::update) {
    expansion.update();
  } else if (kind == ProgramKind::evaluation) {
    expansion.evaluation();
  } else if (plan.records_microbatches()) {
    expansion.graph_pass(is_last);
  } else if (plan.request.pipeline) {
    expansion.pass(plan.request.pipeline->actions, is_last);
  } else {
    expansion.pass(std::vector<Action>{{forward, 0, 0}, {backward, 0, 0}}, is_last);
  }
  return expansion.finish();
}

Program expand(const Plan& plan, std::span<const Action> table, const WeightState& entry, bool is_last) {
  Expansion expansion(plan, entry, is_last ? ProgramKind::last_pass : ProgramKind::pass);
  expansion.pass(table, is_last);
  return expansion.finish();
}

std::vector<RepeatedProgram> step_programs(const Plan& plan, const WeightState& entry) {
  const int64_t together = plan.request.microbatches_per_pass();
  std::vector<RepeatedProgram> programs;
  WeightState state = entry;
  auto next = [&](ProgramKind kind) {
    programs.push_back({expand(plan, kind, state)});
    state = programs.back().program.exit;
  };
  for (int64_t left = plan.request.accumulation / together - 1; left > 0; left -= programs.back().times) {
    next(ProgramKind::pass);
    // A pass that ends in the state in which it began is the same for all passes that are left.
    if (state == programs.back().program.entry) programs.back().times = left;
  }
  next(ProgramKind::last_pass);
  next(ProgramKind::update);
  return programs;
}

std::string to_line(const Plan& plan, const Action& action) {
  if (!action.parts.empty()) {
    std::vector<std::string> lines;
    for (const Action& part : action.parts) lines.push_back(to_line(plan, part));
    return fmt::format("{} ({})", word_of(action.kind), join(lines, "; "));
  }
  std::string line(action.kind == forward           ? "FORWARD"
                   : action.kind == backward        ? "BACKWARD"
                   : action.kind == weight_gradient ? "WEIGHT_GRADIENT"
                                                    : word_of(action.kind));
  if (action.unit >= 0) line += " " + plan.units[static_cast<size_t>(action.unit)].name;
  if (action.unit < 0 && action.stage >= 0) line += fmt::format(" stage {}", action.stage);
  if (action.group >= 0) line += " " + plan.groups[static_cast<size_t>(action.group)].name;
  if (action.slot >= 0) line += fmt::format(" slot {}", action.slot);
  if (action.microbatch >= 0) line += fmt::format(" microbatch {}", action.microbatch);
  return line;
}

}  // namespace titan
