#include "titan/parallel/plan.h"

#include <algorithm>

#include "titan/base/error.h"

namespace titan {
namespace {

size_t group_with(const Plan& plan, const std::string& parameter) {
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    for (const ParameterSpec& spec : plan.groups[g].parameters) {
      if (spec.name == parameter) return g;
    }
  }
  throw InvariantError(fmt::format("internal error: no unit before its borrower owns {}", parameter));
}

void add_units(Plan& plan, const ModelDescription& model, const ModelFamily& family) {
  const PlanRequest& request = plan.request;
  const ActivationShape shape{request.samples, request.sequence_length, size_of(request.compute)};
  int64_t block = 0;
  for (const UnitDescription& unit : model.units) {
    UnitPlan planned{unit.name, unit.role, {}, RecomputePolicy::none(), 0};
    if (!unit.parameters.empty()) {
      planned.groups.push_back(plan.groups.size());
      plan.groups.push_back({unit.name, unit.parameters, unit.numel(), plan.units.size()});
    }
    for (const std::string& parameter : unit.borrowed) planned.groups.push_back(group_with(plan, parameter));
    if (unit.role == UnitRole::block) planned.policy = family.policy(request.recompute, block++);
    planned.saved_bytes = unit.saved_bytes(shape, planned.policy);
    plan.units.push_back(std::move(planned));
  }
  // Backward walks the chain from its end: a group is complete after its first user.
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    for (size_t u = plan.units.size(); u-- > 0;) {
      const std::vector<size_t>& used = plan.units[u].groups;
      if (std::find(used.begin(), used.end(), g) != used.end()) plan.groups[g].reduce_after = u;
    }
  }
}

void add_memory(Plan& plan, const ModelDescription& model) {
  const PlanRequest& request = plan.request;
  const int64_t n = plan.parameter_count;
  const int64_t tokens = request.samples * request.sequence_length;
  auto add = [&](const char* name, int64_t bytes) {
    if (bytes > 0) plan.memory.push_back({name, bytes});
  };
  add("parameters", n * size_of(request.master));
  if (request.compute != request.master) add("parameters, compute copy", n * size_of(request.compute));
  int64_t largest_group = 0;
  for (const WeightGroupPlan& group : plan.groups) largest_group = std::max(largest_group, group.numel);
  add("gradients", (request.step_in_backward ? largest_group : n) * size_of(ElementType::float32));
  add("optimizer state", n * request.optimizer_moments * size_of(request.optimizer_state));
  int64_t activations = 0;
  for (const UnitPlan& unit : plan.units) activations += unit.saved_bytes;
  add("activations kept", activations);
  add("one block recomputed", [&] {
    int64_t most = 0;
    const ActivationShape shape{request.samples, request.sequence_length, size_of(request.compute)};
    for (size_t u = 0; u < plan.units.size(); ++u) {
      if (!plan.units[u].policy.checkpointed()) continue;
      int64_t whole = model.units[u].saved_bytes(shape, RecomputePolicy::none());
      most = std::max(most, whole - plan.units[u].saved_bytes);
    }
    return most;
  }());
  const int64_t chunk_rows = (tokens + request.loss_chunks - 1) / request.loss_chunks;
  add("logits of one chunk", 2 * chunk_rows * model.vocabulary * size_of(ElementType::float32));
}

}  // namespace

int64_t size_of(ElementType type) { return type == ElementType::float32 ? 4 : 2; }
std::string_view name(ElementType type) { return type == ElementType::float32 ? "float32" : "bfloat16"; }

int64_t WeightGroupPlan::offset_of(size_t index) const {
  int64_t offset = 0;
  for (size_t i = 0; i < index; ++i) offset += parameters[i].numel();
  return offset;
}

int64_t Plan::predicted_bytes() const {
  int64_t total = 0;
  for (const MemoryPurpose& purpose : memory) total += purpose.bytes;
  return total;
}

Plan make_plan(const ModelDescription& model, const ModelFamily& family, const PlanRequest& request) {
  Plan plan;
  plan.request = request;
  plan.parameter_count = model.parameter_count();
  plan.flops_per_token = model.flops_per_token(request.sequence_length);
  add_units(plan, model, family);
  add_memory(plan, model);
  return plan;
}

}  // namespace titan
