// One step of a plan, walked as the executor runs it: when weights are called for and have come, when reductions begin
// and are over. For what a plan counts; knows neither bytes nor time.
#pragma once

#include <optional>
#include <vector>

#include "titan/parallel/plan.h"

namespace titan {

/// Of a plan that gathers its weights. When a step begins no slot holds any: the optimizer has changed them all.
class StepWalk {
 public:
  explicit StepWalk(const Plan& plan);
  virtual ~StepWalk() = default;
  StepWalk(const StepWalk&) = delete;
  StepWalk& operator=(const StepWalk&) = delete;

  void run();

 protected:
  /// A group's weights are on their way into its slot, which held others; they are there when a unit needs them.
  virtual void gather_begins(size_t) {}
  virtual void gather_ends(size_t) {}
  /// A group's gradient is on its way to its shards; it is there after the next one's way has begun.
  virtual void reduction_begins(size_t) {}
  virtual void reduction_ends(size_t) {}

 private:
  void run_pipeline();
  void forward(const StagePlan& stage);
  void backward(const StagePlan& stage, bool reduces);
  void reduce_stage(const StagePlan& stage);
  void prefetch(const UnitPlan& unit);
  void prefetch(size_t group);
  void acquire(const UnitPlan& unit);
  void reduce(size_t group);
  void settle();

  const Plan& plan_;
  std::vector<std::optional<size_t>> holder_;  // by weight slot: the group
  std::vector<bool> arriving_;                 // by group
  std::optional<size_t> reducing_;
};

}  // namespace titan
