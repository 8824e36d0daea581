// How parameters, weight groups and pipeline stages are laid out over the ranks, and which slots of memory gathered
// weights and unreduced gradients use.
#include <algorithm>
#include <functional>
#include <set>

#include "plan_parts.h"
#include "titan/base/error.h"
#include "titan/schedule/pipeline_plan.h"
#include "titan/schedule/table.h"

namespace titan {
namespace {

/// [first, last) of the chain's units that hold the modules of a stage; a head holds several.
std::pair<size_t, size_t> units_of(const std::vector<std::string>& modules, const ModelDescription& model) {
  const ModelChain chain = chain_of(model);
  auto unit_of = [&](const std::string& module) -> size_t {
    const auto is_it = [&](const UnitDescription& unit) {
      return unit.name == module || (unit.role == UnitRole::head &&
                                     std::find(chain.last.begin(), chain.last.end(), module) != chain.last.end());
    };
    const auto found = std::find_if(model.units.begin(), model.units.end(), is_it);
    TITAN_CHECK(found != model.units.end(), module);
    return static_cast<size_t>(found - model.units.begin());
  };
  return {unit_of(modules.front()), unit_of(modules.back()) + 1};
}

bool uses(const UnitDescription& unit, const std::string& parameter) {
  return std::find(unit.borrowed.begin(), unit.borrowed.end(), parameter) != unit.borrowed.end();
}

}  // namespace

int64_t ParameterPlan::chunk_numel() const {
  const int64_t rows = unsharded.extent[0];
  return rows == 0 ? 0 : unsharded.numel() / rows * chunk_rows;
}

ParameterPlan plan_parameter(const ParameterSpec& spec, const PlanRequest& request) {
  const DeviceMesh& mesh = request.place.mesh;
  const int64_t tensor_ranks = mesh.size(MeshAxis::tp);
  std::vector<Split> splits;
  std::vector<int64_t> coordinates;
  // Replicated along dp_replicate, and along tp if no dimension is sharded.
  splits.push_back({std::string(name(MeshAxis::dp_replicate)), mesh.size(MeshAxis::dp_replicate), std::nullopt});
  coordinates.push_back(request.place.coordinate(MeshAxis::dp_replicate));
  splits.push_back({std::string(name(MeshAxis::tp)), tensor_ranks, spec.tensor_parallel_dimension});
  coordinates.push_back(request.place.coordinate(MeshAxis::tp));
  const Box unsharded = TensorLayout(spec.shape, splits).box(coordinates);
  splits.push_back({"fsdp", request.shards(), 0});
  coordinates.push_back(request.place.coordinate(MeshAxis::dp_shard) * mesh.size(MeshAxis::cp) +
                        request.place.coordinate(MeshAxis::cp));
  TensorLayout layout(spec.shape, splits);
  Box shard = layout.box(coordinates);
  const int64_t rows = (unsharded.extent[0] + request.shards() - 1) / request.shards();
  const bool owns_shard = layout.owns(coordinates);
  const bool copied = tensor_ranks > 1 && !spec.tensor_parallel_dimension;
  return {spec, std::move(layout), unsharded, std::move(shard), rows, owns_shard, copied};
}

namespace {

/// A slot that holds at least `bytes`.
size_t add_slot(std::vector<int64_t>& slots, int64_t bytes) {
  slots.push_back(bytes);
  return slots.size() - 1;
}

/// With CPU offload and FSDP a slot holds a group and this rank's shard, which is copied to the device first.
bool stages_shards(const PlanRequest& request) { return request.training.enable_cpu_offload && request.shards() > 1; }

using BytesOf = std::function<int64_t(const WeightGroupPlan&)>;

/// Two slots that `groups` use alternately, so that the next can be gathered while one is in use.
void take_turns(std::vector<int64_t>& slots, const std::vector<WeightGroupPlan*>& groups, size_t WeightGroupPlan::*slot,
                const BytesOf& bytes) {
  const size_t first = slots.size();
  for (size_t i = 0; i < groups.size(); ++i) {
    const size_t mine = first + i % 2;
    if (mine == slots.size()) add_slot(slots, 0);
    slots[mine] = std::max(slots[mine], bytes(*groups[i]));
    groups[i]->*slot = mine;
  }
}

/// The groups of blocks, which no other unit uses.
std::vector<WeightGroupPlan*> block_groups(Plan& plan) {
  std::vector<WeightGroupPlan*> groups;
  for (UnitPlan& unit : plan.units) {
    if (unit.role != UnitRole::block) continue;
    for (size_t g : unit.groups) groups.push_back(&plan.groups[g]);
  }
  return groups;
}

/// The groups of a stage's first and last unit, if no other unit uses them. They can share a slot if there are units in
/// between, because the last one's weights are gathered while the unit before it runs.
std::vector<WeightGroupPlan*> end_groups(Plan& plan) {
  std::vector<WeightGroupPlan*> groups;
  for (const StagePlan& stage : plan.stages) {
    if (stage.last - stage.first < 3) continue;
    for (size_t u : {stage.first, stage.last - 1}) {
      if (plan.units[u].role != UnitRole::block && plan.units[u].groups.size() == 1) {
        groups.push_back(&plan.groups[plan.units[u].groups[0]]);
      }
    }
  }
  const bool distinct = groups.size() == 2 && groups[0] != groups[1];
  return distinct ? groups : std::vector<WeightGroupPlan*>();
}

/// Gradients narrowed for their reduction: one starts before the previous has ended, so neighbours alternate.
void assign_message_slots(Plan& plan) {
  std::vector<WeightGroupPlan*> narrowed;
  for (WeightGroupPlan& group : plan.groups) {
    if (group.is_trained() && group.narrows_gradient()) narrowed.push_back(&group);
  }
  const bool cut = plan.request.shards() > 1;
  take_turns(plan.message_slots, narrowed, &WeightGroupPlan::message_slot, [cut](const WeightGroupPlan& group) {
    return (group.trained_numel() + (cut ? group.trained_shard_numel() : 0)) * size_of(group.reduce);
  });
}

}  // namespace

void assign_slots(Plan& plan) {
  assign_message_slots(plan);
  if (!plan.gathers_weights()) return;
  const BytesOf weight_bytes = [&](const WeightGroupPlan& group) {
    return group.gathered_bytes() + (stages_shards(plan.request) ? group.gathered_shard_bytes() : 0);
  };
  const BytesOf gradient_bytes = [&](const WeightGroupPlan& group) {
    const int64_t staged = stages_shards(plan.request) ? group.trained_shard_numel() : 0;
    return (group.trained_numel() + staged) * size_of(ElementType::float32);
  };
  std::vector<WeightGroupPlan*> blocks = block_groups(plan);
  // In a pipeline every unit runs many times per step: by default its weights stay gathered.
  const bool weights_stay =
      plan.request.parallelism.fsdp_reshard_after_forward == ReshardPolicy::never ||
      (plan.request.parallelism.fsdp_reshard_after_forward == ReshardPolicy::standard && plan.request.pipeline);
  const bool weights_rotate = !weights_stay;
  // Gradients of several microbatches accumulate in their slot. Those of one microbatch are reduced right after the
  // unit's backward, except in a pipeline, where a whole stage is reduced at once.
  const bool gradients_rotate = plan.request.accumulation == 1 && !plan.request.pipeline;
  if (weights_rotate) take_turns(plan.weight_slots, blocks, &WeightGroupPlan::weight_slot, weight_bytes);
  if (gradients_rotate) {
    std::vector<WeightGroupPlan*> trained = blocks;
    std::erase_if(trained, [](const WeightGroupPlan* group) { return !group->is_trained(); });
    take_turns(plan.gradient_slots, trained, &WeightGroupPlan::gradient_slot, gradient_bytes);
  }
  std::vector<WeightGroupPlan*> ends;
  if (plan.request.parallelism.fsdp_reshard_after_forward == ReshardPolicy::always) ends = end_groups(plan);
  if (!ends.empty()) {
    const size_t shared = add_slot(plan.weight_slots, std::max(weight_bytes(*ends[0]), weight_bytes(*ends[1])));
    for (WeightGroupPlan* group : ends) group->weight_slot = shared;
  }
  const auto is_in = [](const std::vector<WeightGroupPlan*>& groups, const WeightGroupPlan& group) {
    return std::find(groups.begin(), groups.end(), &group) != groups.end();
  };
  for (WeightGroupPlan& group : plan.groups) {
    const bool is_block = is_in(blocks, group);
    if (!(is_block && weights_rotate) && !is_in(ends, group)) {
      group.weight_slot = add_slot(plan.weight_slots, weight_bytes(group));
    }
    if (group.is_trained() && !(is_block && gradients_rotate)) {
      group.gradient_slot = add_slot(plan.gradient_slots, gradient_bytes(group));
    }
  }
}

const StagePlan& stage_numbered(const Plan& plan, int64_t number) {
  for (const StagePlan& stage : plan.stages) {
    if (stage.number == number) return stage;
  }
  throw InvariantError(fmt::format("internal error: stage {} is not of this rank", number));
}

ModelChain chain_of(const ModelDescription& model) {
  ModelChain chain;
  chain.layers =
      static_cast<int>(std::count_if(model.units.begin(), model.units.end(),
                                     [](const UnitDescription& unit) { return unit.role == UnitRole::block; }));
  return chain;
}

PipelinePart pipeline_part(const PipelinePlan& pipeline, const ModelDescription& model, int64_t rank) {
  PipelinePart part;
  part.rank_of_stage.assign(pipeline.rank_of_stage.begin(), pipeline.rank_of_stage.end());
  for (size_t stage = 0; stage < pipeline.stages.size(); ++stage) {
    const auto [first, last] = units_of(pipeline.stages[stage], model);
    part.rank_of_unit.resize(last, pipeline.rank_of_stage[stage]);
    if (pipeline.rank_of_stage[stage] != rank) continue;
    part.stages.push_back({static_cast<int64_t>(stage), first, last});
  }
  part.microbatches = pipeline.microbatches;
  const ScheduleTable lowered = lower(pipeline.compute, {.sharded = false});
  part.actions = lowered[static_cast<size_t>(rank)];
  part.splits_backward = facts_of(pipeline.compute).splits_backward;
  return part;
}

int64_t planned_live(const PipelinePart& part) { return most_held(part.actions, Thing::saved); }

std::optional<std::pair<int64_t, int64_t>> tied_ranks_of(const PlanRequest& request, const ModelDescription& model) {
  if (!request.pipeline) return std::nullopt;
  const bool shared = std::any_of(model.units.begin(), model.units.end(),
                                  [](const UnitDescription& unit) { return !unit.borrowed.empty(); });
  const int64_t first = request.pipeline->rank_of_stage.front();
  const int64_t last = request.pipeline->rank_of_stage.back();
  if (!shared || first == last) return std::nullopt;
  return std::pair{std::min(first, last), std::max(first, last)};
}

std::vector<ParameterPlace> place_parameters(const ModelDescription& model, const PlanRequest& request) {
  std::vector<ParameterPlace> places;
  for (size_t owner = 0; owner < model.units.size(); ++owner) {
    for (const ParameterSpec& spec : model.units[owner].parameters) {
      std::set<int64_t> stages;
      for (size_t unit = 0; request.pipeline && unit < model.units.size(); ++unit) {
        if (unit == owner || uses(model.units[unit], spec.name)) stages.insert(request.pipeline->rank_of_unit[unit]);
      }
      places.push_back({spec, plan_parameter(spec, request).layout, {stages.begin(), stages.end()}});
    }
  }
  return places;
}

}  // namespace titan
