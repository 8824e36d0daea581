#include "plan_walk.h"

#include <utility>

#include "plan_parts.h"

namespace titan {

StepWalk::StepWalk(const Plan& plan)
    : plan_(plan), holder_(plan.weight_slots.size()), arriving_(plan.groups.size(), false) {}

void StepWalk::run() {
  if (plan_.request.pipeline) return run_pipeline();
  for (int64_t microbatch = 0; microbatch < plan_.request.accumulation; ++microbatch) {
    forward(plan_.stages[0]);
    backward(plan_.stages[0], /*reduces=*/microbatch + 1 == plan_.request.accumulation);
  }
  settle();
}

void StepWalk::run_pipeline() {
  const PipelinePart& part = *plan_.request.pipeline;
  const int64_t passes = plan_.request.accumulation / part.microbatches;
  for (int64_t pass = 0; pass < passes; ++pass) {
    for (const Action& merged : part.actions) {
      for (const Action& action : leaves(merged)) {
        if (action.kind == ActionKind::forward) forward(stage_numbered(plan_, action.stage));
        if (action.kind == ActionKind::backward || action.kind == ActionKind::input_gradient) {
          backward(stage_numbered(plan_, action.stage), /*reduces=*/false);
        }
        const bool is_last = pass + 1 == passes;
        if (action.kind == ActionKind::reduce_grad && is_last) reduce_stage(stage_numbered(plan_, action.stage));
      }
    }
  }
}

void StepWalk::forward(const StagePlan& stage) {
  for (size_t u = stage.first; u < stage.last; ++u) {
    acquire(plan_.units[u]);
    if (u + 1 < stage.last) prefetch(plan_.units[u + 1]);
  }
}

void StepWalk::backward(const StagePlan& stage, bool reduces) {
  for (size_t u = stage.last; u-- > stage.first;) {
    if (plan_.units[u].weights_in_backward) acquire(plan_.units[u]);
    if (u > stage.first && plan_.units[u - 1].weights_in_backward) prefetch(plan_.units[u - 1]);
    if (!reduces) continue;
    for (size_t g : plan_.units[u].groups) {
      if (plan_.groups[g].reduce_after == u) reduce(g);
    }
  }
}

void StepWalk::reduce_stage(const StagePlan& stage) {
  for (size_t g = plan_.groups.size(); g-- > 0;) {
    const size_t unit = plan_.groups[g].reduce_after;
    if (unit >= stage.first && unit < stage.last) reduce(g);
  }
  settle();
}

void StepWalk::prefetch(const UnitPlan& unit) {
  for (size_t g : unit.groups) prefetch(g);
}

void StepWalk::prefetch(size_t group) {
  std::optional<size_t>& holder = holder_[plan_.groups[group].weight_slot];
  if (holder == group) return;
  holder = group;
  arriving_[group] = true;
  gather_begins(group);
}

void StepWalk::acquire(const UnitPlan& unit) {
  for (size_t g : unit.groups) {
    prefetch(g);
    if (!arriving_[g]) continue;
    arriving_[g] = false;
    gather_ends(g);
  }
}

// A reduction begins before the one before it is over.
void StepWalk::reduce(size_t group) {
  reduction_begins(group);
  settle();
  reducing_ = group;
}

void StepWalk::settle() {
  if (const std::optional<size_t> over = std::exchange(reducing_, std::nullopt)) reduction_ends(*over);
}

}  // namespace titan
