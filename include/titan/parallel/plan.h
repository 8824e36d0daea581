// The plan: a pure function of the model's description and the job's choices. It says which parameters live together,
// in what order units use them, when gradients are complete, what is recomputed and what everything costs. It needs no
// GPU, no process group and no tensor memory; the executor carries it out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "titan/model/description.h"
#include "titan/model/model.h"
#include "titan/ops/recompute.h"

namespace titan {

enum class ElementType { float32, bfloat16 };
int64_t size_of(ElementType type);
std::string_view name(ElementType type);

/// What the plan is made for. Sizes are of one rank.
struct PlanRequest {
  int64_t samples = 1;  // of one microbatch
  int64_t sequence_length = 1;
  int64_t accumulation = 1;  // microbatches per step
  ElementType master = ElementType::float32;
  ElementType compute = ElementType::float32;
  ElementType optimizer_state = ElementType::float32;
  int64_t optimizer_moments = 2;
  bool step_in_backward = false;
  int64_t loss_chunks = 8;
  RecomputeSelection recompute;
};

/// Parameters that are gathered, reduced and stored together, in storage order.
struct WeightGroupPlan {
  std::string name;
  std::vector<ParameterSpec> parameters;
  int64_t numel = 0;
  size_t reduce_after = 0;  // its gradient is complete after the backward of this unit

  /// Elements before parameter `index`.
  int64_t offset_of(size_t index) const;
};

struct UnitPlan {
  std::string name;
  UnitRole role = UnitRole::block;
  std::vector<size_t> groups;  // weight groups it uses, its own first
  RecomputePolicy policy = RecomputePolicy::none();
  int64_t saved_bytes = 0;  // per microbatch, from its forward to its backward
};

/// One line of the memory table: bytes by purpose.
struct MemoryPurpose {
  std::string name;
  int64_t bytes = 0;
};

struct Plan {
  PlanRequest request;
  std::vector<WeightGroupPlan> groups;
  std::vector<UnitPlan> units;
  int64_t parameter_count = 0;
  int64_t flops_per_token = 0;
  std::vector<MemoryPurpose> memory;

  int64_t predicted_bytes() const;
};

/// `family` names the recompute policy of each block.
Plan make_plan(const ModelDescription& model, const ModelFamily& family, const PlanRequest& request);

}  // namespace titan
