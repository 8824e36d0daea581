#include "titan/parallel/program.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "plan_parts.h"
#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {
namespace {

using enum ActionKind;

/// Writes one program from its front to its end, and keeps what the slots hold at that point of it.
class Expansion {
 public:
  Expansion(const Plan& plan, const WeightState& entry, ProgramKind kind)
      : plan_(plan), replicates_(plan.request.replicates()), state_(entry) {
    program_.entry = entry;
    program_.kind = kind;
  }

  Program finish() {
    program_.exit = std::move(state_);
    return std::move(program_);
  }

  /// Stage actions, and behind them what ends the last pass of a step.
  void pass(std::span<const Action> table, bool is_last) {
    const bool pipeline = plan_.request.pipeline.has_value();
    for (const Action& action : table) {
      // Stepping in backward, an update depends on whether the loss is finite.
      if (is_last && !pipeline && action.kind == backward) add({.kind = loss_sum});
      act(action, is_last);
    }
    if (!pipeline) return;
    add({.kind = wait_sends});
    if (!is_last) return;
    for (size_t g = groups(); g-- > 0;) {
      if (!group(g).is_tied) continue;
      add_group(add_tied, g);
      complete(g);
    }
    add({.kind = loss_sum});
  }

  /// Refreshes all weights, runs forward and backward of all units as one graph, and reduces afterwards.
  void graph_pass(bool is_last) {
    for (size_t u = 0; u < plan_.units.size(); ++u) {
      bring(u);
      open(u);
    }
    Action both{.kind = graph, .microbatch = 0};
    for (size_t u = 0; u < plan_.units.size(); ++u) both.parts.push_back(unit_action(forward, u, 0));
    for (size_t u = plan_.units.size(); u-- > 0;) both.parts.push_back(unit_action(backward, u, 0));
    add(std::move(both));
    if (!is_last) return;
    for (size_t u = plan_.units.size(); u-- > 0;) reduce_behind(u);
    end_reductions();
    add({.kind = loss_sum});
  }

  void update() {
    const PlanRequest& request = plan_.request;
    if (!request.cpu_offload && !request.step_in_backward) add({.kind = squares});
    if (!request.step_in_backward) add({.kind = norm});
    add({.kind = control});
    if (!request.step_in_backward) {
      add({.kind = before_change});  // beside gradients that are still on their way to the host
      if (request.cpu_offload) add({.kind = wait_host});
      add({.kind = step});
      for (size_t g = 0; g < groups(); ++g) weights_written(g);
    }
    if (plan_.precomputes_scales()) {
      add({.kind = scale});
      for (size_t g = 0; g < groups(); ++g) state_.scaled[g] = state_.scaled[g] || group(g).gathers_float8;
    }
    add({.kind = zero_gradient});
    state_.open.assign(groups(), false);
  }

  /// One batch through the stages, one after the other.
  void evaluation() {
    bool sends = false;
    for (const StagePlan& stage : plan_.stages) {
      if (stage.number > 0 && !is_here(stage.number - 1)) {
        add({receive_forward, static_cast<int>(stage.number), 0});
        add({wait_forward, static_cast<int>(stage.number), 0});
      }
      for (size_t u = stage.first; u < stage.last; ++u) {
        use(u);
        if (u + 1 < stage.last) bring(u + 1);
        add(unit_action(evaluate, u, 0));
        release(u);
      }
      if (is_models_last(stage)) continue;
      const bool stays = is_here(stage.number + 1);
      add({stays ? handoff_forward : send_forward, static_cast<int>(stage.number), 0});
      sends = sends || !stays;
    }
    if (sends) add({.kind = wait_sends});
  }

 private:
  size_t groups() const { return plan_.groups.size(); }
  const WeightGroupPlan& group(size_t g) const { return plan_.groups[g]; }
  bool is_here(int64_t stage) const {
    return std::any_of(plan_.stages.begin(), plan_.stages.end(),
                       [&](const StagePlan& local) { return local.number == stage; });
  }
  bool is_models_last(const StagePlan& stage) const {
    return plan_.units[stage.last - 1].chain_index + 1 == plan_.chain_length;
  }

  void add(Action action) { program_.actions.push_back(std::move(action)); }
  void add_group(ActionKind kind, size_t g, int slot = -1) {
    add({.kind = kind, .group = static_cast<int>(g), .slot = slot});
  }
  void add_weights(ActionKind kind, size_t g) { add_group(kind, g, static_cast<int>(group(g).weight_slot)); }
  Action unit_action(ActionKind kind, size_t u, int microbatch) const {
    const auto stage = static_cast<int>(plan_.stages[plan_.stage_of(u)].number);
    return {.kind = kind, .stage = stage, .microbatch = microbatch, .unit = static_cast<int>(u)};
  }

  // ---- stages

  void act(const Action& action, bool is_last) {
    switch (action.kind) {
      case forward:
        return forward_stage(action.stage, action.microbatch);
      case backward:
        backward_stage(action.stage, action.microbatch, is_last);
        if (plan_.request.splits_backward()) {
          add({weight_gradient, action.stage, action.microbatch});
        }
        return hand_back(action.stage, action.microbatch);
      case input_gradient:
        backward_stage(action.stage, action.microbatch, is_last);
        return hand_back(action.stage, action.microbatch);
      case reduce_grad:
        if (is_last) reduce_stage(action.stage);
        return;
      case overlap:
        for (const Action& part : action.parts) act(part, is_last);
        return;
      default:  // transfers and weight gradients are as the table has them
        return add(action);
    }
  }

  void forward_stage(int number, int microbatch) {
    const StagePlan& stage = stage_numbered(plan_, number);
    if (number > 0 && !is_here(number - 1)) add({wait_forward, number, microbatch});
    for (size_t u = stage.first; u < stage.last; ++u) {
      use(u);
      if (u + 1 < stage.last) bring(u + 1);
      if (plan_.units[u].gradients_in_forward) open(u);
      add(unit_action(forward, u, microbatch));
      if (plan_.units[u].offloaded) add(unit_action(offload, u, microbatch));
      release(u);
    }
    if (!is_models_last(stage) && is_here(number + 1)) add({handoff_forward, number, microbatch});
  }

  void backward_stage(int number, int microbatch, bool is_last) {
    const StagePlan& stage = stage_numbered(plan_, number);
    if (!is_models_last(stage) && !is_here(number + 1)) add({wait_backward, number, microbatch});
    for (size_t u = stage.last; u-- > stage.first;) {
      const UnitPlan& unit = plan_.units[u];
      if (unit.weights_in_backward) use(u);
      if (u > stage.first && plan_.units[u - 1].weights_in_backward) bring(u - 1);
      open(u);
      if (unit.offloaded) {
        fetch_once(u, microbatch);
        add(unit_action(wait_fetch, u, microbatch));
      }
      if (u > stage.first && plan_.units[u - 1].offloaded) fetch_once(u - 1, microbatch);
      add(unit_action(backward, u, microbatch));
      if (unit.weights_in_backward) release(u);
      if (is_last && !plan_.request.pipeline) reduce_behind(u);
    }
    end_reductions();
  }

  void hand_back(int number, int microbatch) {
    if (number > 0 && is_here(number - 1)) add({handoff_backward, number, microbatch});
  }

  void fetch_once(size_t u, int microbatch) {
    if (fetched_.emplace(u, microbatch).second) add(unit_action(fetch, u, microbatch));
  }

  // ---- weights

  /// The weights of a unit are on their way.
  void bring(size_t u) {
    for (size_t g : plan_.units[u].groups) bring_group(g);
  }
  void bring_group(size_t g) {
    const bool sharded = plan_.gathers_weights();
    const auto slot = group(g).weight_slot;
    if (sharded && state_.held[slot] == static_cast<int>(g)) return;
    if (!state_.fresh[g]) {
      if (!sharded || plan_.copies_weights(group(g))) add_group(refresh, g);
      state_.fresh[g] = true;
      if (!sharded || group(g).gathers_float8) state_.scaled[g] = true;
    }
    if (!sharded) return;
    add_weights(unshard, g);
    state_.held[slot] = static_cast<int>(g);
  }

  /// Its operations find them.
  void use(size_t u) {
    for (size_t g : plan_.units[u].groups) {
      bring_group(g);
      if (!plan_.gathers_weights()) continue;
      add_weights(wait_unshard, g);
      if (group(g).scaled_weights() == 0 || state_.scaled[g]) continue;
      add_group(scale, g);
      state_.scaled[g] = true;
    }
  }

  void release(size_t u) {
    if (!plan_.gathers_weights()) return;
    for (size_t g : plan_.units[u].groups) add_weights(reshard, g);
  }

  void weights_written(size_t g) {
    state_.fresh[g] = state_.scaled[g] = false;
    std::replace(state_.held.begin(), state_.held.end(), static_cast<int>(g), -1);
  }

  // ---- gradients

  void open(size_t u) {
    for (size_t g : plan_.units[u].groups) {
      if (state_.open[g]) continue;
      add_group(open_gradient, g, plan_.gathers_weights() ? static_cast<int>(group(g).gradient_slot) : -1);
      state_.open[g] = true;
    }
  }

  void reduce_behind(size_t u) {
    for (size_t g : plan_.units[u].groups) {
      if (group(g).reduce_after == u) reduce(g);
    }
  }

  void reduce_stage(int number) {
    const StagePlan& stage = stage_numbered(plan_, number);
    for (size_t g = groups(); g-- > 0;) {
      const size_t unit = group(g).reduce_after;
      if (unit >= stage.first && unit < stage.last) reduce(g);
    }
    end_reductions();
  }

  // A group's reduction overlaps with the next unit's backward, and its slot is free before the one after that needs
  // it. The second leg, over replicas, overlaps with one more unit's backward. With one shard and
  // CPU offload there is nothing to reduce, so the gradient is complete at once.
  void reduce(size_t g) {
    add_group(close_gradient, g);
    const bool scatters = plan_.request.shards() > 1;
    if (scatters) add_group(reduce_scatter, g);
    if (!plan_.gathers_weights() && replicates_) add_group(all_reduce, g);
    advance();
    scattering_ = g;
    if (plan_.gathers_weights() && !scatters) advance();
  }

  /// Begins the second leg of the newest reduction, and ends the one before it.
  void advance() {
    const std::optional<size_t> newest = std::exchange(scattering_, std::nullopt);
    const bool goes_on = newest && begin_second_leg(*newest);
    if (replicating_) end_reduction(*std::exchange(replicating_, std::nullopt));
    if (goes_on) {
      replicating_ = newest;
    } else if (newest) {
      end_reduction(*newest);
    }
  }

  /// Begins the all-reduce over replicas. True if it may overlap with another unit's backward; false if its result is
  /// in a slot that another group needs, so it must be waited for at once.
  bool begin_second_leg(size_t g) {
    if (!plan_.gathers_weights()) return false;
    if (plan_.request.shards() > 1) add_group(wait_reduce, g);
    if (replicates_) add_group(all_reduce, g);
    return replicates_ && !group(g).narrows_gradient() && !plan_.request.cpu_offload;
  }

  void end_reduction(size_t g) {
    if (replicates_) add_group(wait_reduce, g);
    if (group(g).partial_numel() > 0) add_group(reduce_partial, g);
    if (!group(g).is_tied) complete(g);
  }

  void end_reductions() {
    advance();
    advance();
  }

  /// What is done with each group's gradient as soon as it is complete.
  void complete(size_t g) {
    const bool host = plan_.request.cpu_offload, steps = plan_.request.step_in_backward;
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
    weights_written(g);
    add_group(zero_gradient, g);
    state_.open[g] = false;
  }

  const Plan& plan_;
  const bool replicates_;
  WeightState state_;
  Program program_;
  std::set<std::pair<size_t, int>> fetched_;  // unit and microbatch
  std::optional<size_t> scattering_;          // the group whose reduction was begun last
  std::optional<size_t> replicating_;         // and the one before it, in its second leg
  bool changes_ = false;                      // weights or moments have changed
};

/// Of a rank that is no part of a pipeline.
std::vector<Action> one_microbatch() { return {{forward, 0, 0}, {backward, 0, 0}}; }

}  // namespace

WeightState stale_state(const Plan& plan) {
  const size_t groups = plan.groups.size();
  return {std::vector<int>(plan.weight_slots.size(), -1), std::vector<bool>(groups, false),
          std::vector<bool>(groups, false), std::vector<bool>(groups, false)};
}

Program expand(const Plan& plan, ProgramKind kind, const WeightState& entry, bool graphs) {
  if (kind == ProgramKind::pass || kind == ProgramKind::last_pass) {
    const bool is_last = kind == ProgramKind::last_pass;
    if (!graphs) {
      return expand(plan, plan.request.pipeline ? plan.request.pipeline->actions : one_microbatch(), entry, is_last);
    }
    Expansion expansion(plan, entry, kind);
    expansion.graph_pass(is_last);
    return expansion.finish();
  }
  Expansion expansion(plan, entry, kind);
  kind == ProgramKind::update ? expansion.update() : expansion.evaluation();
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
