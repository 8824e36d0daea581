#include "titan/parallel/plan.h"

#include <algorithm>

#include "plan_parts.h"
#include "titan/base/error.h"

namespace titan {
namespace {

size_t group_with(const Plan& plan, const std::string& parameter) {
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    for (const ParameterPlan& member : plan.groups[g].parameters) {
      if (member.spec.name == parameter) return g;
    }
  }
  throw InvariantError(fmt::format("internal error: no unit before its borrower owns {}", parameter));
}

WeightGroupPlan plan_group(const UnitDescription& unit, const PlanRequest& request) {
  WeightGroupPlan group;
  group.name = unit.name;
  for (const ParameterSpec& spec : unit.parameters) {
    group.parameters.push_back(plan_parameter(spec, request));
    group.numel += group.parameters.back().unsharded.numel();
    group.shard_numel += group.parameters.back().shard.numel();
  }
  return group;
}

void add_units(Plan& plan, const ModelDescription& model, const ModelFamily& family) {
  int64_t block = 0;
  for (const UnitDescription& unit : model.units) {
    UnitPlan planned;
    planned.name = unit.name;
    planned.role = unit.role;
    if (!unit.parameters.empty()) {
      planned.groups.push_back(plan.groups.size());
      plan.groups.push_back(plan_group(unit, plan.request));
    }
    for (const std::string& parameter : unit.borrowed) planned.groups.push_back(group_with(plan, parameter));
    if (unit.role == UnitRole::block) planned.policy = family.policy(plan.request.recompute, block++);
    planned.weights_in_backward = unit.role != UnitRole::embedding;
    planned.gradients_in_forward = unit.role == UnitRole::head;
    plan.units.push_back(std::move(planned));
  }
  // Backward walks the chain from its end: a group is complete after its first user.
  for (size_t u = plan.units.size(); u-- > 0;) {
    for (size_t g : plan.units[u].groups) plan.groups[g].reduce_after = u;
  }
}

/// A unit named in keep_fp32 computes in fp32, and so does every unit that shares a group with it.
void choose_dtypes(Plan& plan) {
  const std::vector<std::string>& kept = plan.request.keep_fp32;
  auto named = [&](const std::string& name) { return std::find(kept.begin(), kept.end(), name) != kept.end(); };
  std::vector<bool> wide(plan.groups.size());
  for (size_t pass = 0; pass < 2; ++pass) {  // twice: a head that borrows a wide group is wide as a whole
    for (UnitPlan& unit : plan.units) {
      const bool is_wide =
          named(unit.name) || std::any_of(unit.groups.begin(), unit.groups.end(), [&](size_t g) { return wide[g]; });
      unit.compute = is_wide ? ElementType::float32 : plan.request.compute;
      for (size_t g : unit.groups) wide[g] = wide[g] || is_wide;
    }
  }
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    plan.groups[g].compute = wide[g] ? ElementType::float32 : plan.request.compute;
  }
}

void add_activations(Plan& plan, const ModelDescription& model) {
  for (size_t u = 0; u < plan.units.size(); ++u) {
    UnitPlan& unit = plan.units[u];
    plan.stream_bytes = std::max(plan.stream_bytes, plan.request.tokens() * model.dim * size_of(unit.compute));
    unit.saved_bytes = model.units[u].saved_bytes(activation_shape(plan.request, unit.compute), unit.policy);
  }
}

}  // namespace

int64_t size_of(ElementType type) { return type == ElementType::float32 ? 4 : 2; }
ActivationShape activation_shape(const PlanRequest& request, ElementType compute) {
  return {request.samples, request.local_length(), size_of(compute), request.place.mesh.size(MeshAxis::tp)};
}

int64_t key_value_numel(const PlanRequest& request, const UnitDescription& unit) {
  return 2 * request.tokens() * unit.key_features / request.place.mesh.size(MeshAxis::tp);
}

std::string_view name(ElementType type) { return type == ElementType::float32 ? "float32" : "bfloat16"; }

int64_t WeightGroupPlan::offset_of(size_t index) const {
  int64_t offset = 0;
  for (size_t i = 0; i < index; ++i) offset += parameters[i].unsharded.numel();
  return offset;
}

int64_t Plan::predicted_bytes() const {
  int64_t total = 0;
  for (const MemoryPurpose& purpose : memory) total += purpose.bytes;
  return total;
}

const GroupTraffic* Plan::traffic_of(std::string_view group) const {
  for (const GroupTraffic& entry : traffic) {
    if (entry.group == group) return &entry;
  }
  return nullptr;
}

Plan make_plan(const ModelDescription& model, const ModelFamily& family, const PlanRequest& request) {
  if (request.sequence_length % request.split().chunks() != 0) {
    throw Error(
        ExitCode::bad_config,
        fmt::format("a sequence of {} tokens does not divide into {} parts for {} context-parallel ranks; use a "
                    "multiple of {}",
                    request.sequence_length, request.split().chunks(), request.split().ranks,
                    request.split().chunks()));
  }
  Plan plan;
  plan.request = request;
  plan.parameter_count = model.parameter_count();
  plan.flops_per_token = model.flops_per_token(request.sequence_length);
  add_units(plan, model, family);
  choose_dtypes(plan);
  add_activations(plan, model);
  assign_slots(plan);
  add_traffic(plan, model);
  add_memory(plan, model);
  return plan;
}

}  // namespace titan
