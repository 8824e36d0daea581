// How parameters, weight groups and pipeline stages are laid out over the ranks, and which slots of memory gathered
// weights and unreduced gradients use.
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "plan_parts.h"
#include "titan/base/error.h"
#include "titan/schedule/pipeline_plan.h"
#include "titan/schedule/rules.h"
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

namespace {

/// The axes over which FSDP shards weights, outermost first. A layout with a shard for each rank along all of them has
/// them as one axis of this name.
const std::vector<MeshAxis> kShardAxes = axes_of(communicator_names::kGather);
constexpr const char* kShardAxis = "fsdp";

/// The ranks along these axes see different tokens, so a weight that they all have gets gradients from all of them.
const std::vector<MeshAxis> kDataAxes = axes_that_divide({DividedWork::sequences, DividedWork::positions});

bool contains(std::span<const MeshAxis> axes, MeshAxis axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

/// The data axes over which the parameters of a group are split: the same for all of them.
std::vector<MeshAxis> data_splits(const UnitDescription& unit, size_t group) {
  std::optional<std::vector<MeshAxis>> all;
  for (const ParameterSpec& spec : unit.parameters) {
    if (spec.group != group) continue;
    std::vector<MeshAxis> own;
    for (const MeshAxis axis : kDataAxes) {
      if (spec.split_over(axis)) own.push_back(axis);
    }
    TITAN_CHECK((!all || *all == own) && "a weight group's parameters are split over the same data axes", unit.name,
                spec.name);
    all = std::move(own);
  }
  return all.value_or(std::vector<MeshAxis>());
}

/// Splits of a layout, and this rank's place along each.
struct PlacedSplits {
  const PlanRequest& request;
  std::vector<Split> splits;
  std::vector<int64_t> coordinates;

  void add(MeshAxis axis, std::optional<int64_t> dimension) {
    splits.push_back({std::string(name(axis)), request.place.mesh.size(axis), dimension});
    coordinates.push_back(request.place.coordinate(axis));
  }
  /// Adds the split by FSDP: one split even if it is over several axes, since torch's checkpoints have one axis for it.
  void add_shards(std::span<const MeshAxis> axes) {
    if (axes.empty()) return;
    if (axes.size() == 1) return add(axes[0], 0);
    TITAN_CHECK(axes.size() == kShardAxes.size() && "one axis or all", axes.size());
    const DeviceMesh& mesh = request.place.mesh;
    splits.push_back({kShardAxis, mesh.size(kShardAxes), 0});
    coordinates.push_back(mesh.coordinate(request.place.rank, kShardAxes));
  }
};

/// Throws if ranks would compute with parts of different sizes. Tensor-parallel ranks may: a vocabulary's rows.
void check_splits(const ParameterSpec& spec, const DeviceMesh& mesh) {
  for (const AxisSplit& split : spec.splits) {
    const int64_t parts = mesh.size(split.axis), size = spec.shape.at(static_cast<size_t>(split.dimension));
    if (split.axis == MeshAxis::tp || size % parts == 0) continue;
    throw Error(
        ExitCode::bad_config,
        fmt::format("dimension {} of {} [{}] does not divide into {} parts over the mesh axis {}; choose another "
                    "degree",
                    split.dimension, spec.name, fmt::join(spec.shape, ", "), parts, name(split.axis)));
  }
}

}  // namespace

GroupAxes group_axes(const UnitDescription& unit, size_t group, const PlanRequest& request) {
  const DeviceMesh& mesh = request.place.mesh;
  const std::vector<MeshAxis> split = data_splits(unit, group);
  GroupAxes axes;
  for (const MeshAxis axis : unit.groups.at(group).sharded_over) {
    TITAN_CHECK(contains(kShardAxes, axis) && "an axis over which weights are sharded", unit.name, name(axis));
    if (!contains(split, axis)) axes.sharded.push_back(axis);
  }
  for (const MeshAxis axis : kDataAxes) {
    if (!contains(split, axis) && !contains(axes.sharded, axis)) axes.replicated.push_back(axis);
  }
  axes.shards = mesh.size(axes.sharded);
  axes.replicas = mesh.size(axes.replicated);
  axes.sums_replicas = axes.replicas > 1 || request.groups_of_one;
  axes.gather = mesh.communicator_over(communicator_names::kGather, axes.sharded);
  axes.scatter = mesh.communicator_over(communicator_names::kScatter, axes.sharded);
  axes.replicate = mesh.communicator_over(communicator_names::kReplicate, axes.replicated);
  return axes;
}

ParameterPlan plan_parameter(const ParameterSpec& spec, const GroupAxes& axes, const PlanRequest& request) {
  const DeviceMesh& mesh = request.place.mesh;
  check_splits(spec, mesh);
  PlacedSplits placed{request, {}, {}};
  // The norm is summed over the ranks of one replica: of copies among them, one counts.
  const std::vector<MeshAxis> summed = axes_of(communicator_names::kModel);
  bool in_norm = true;
  for (const MeshAxis axis : axes.replicated) {
    placed.add(axis, std::nullopt);
    in_norm &= !contains(summed, axis) || request.place.coordinate(axis) == 0;
  }
  for (const MeshAxis axis : kDataAxes) {
    if (const std::optional<int64_t> dimension = spec.split_over(axis)) placed.add(axis, dimension);
  }
  const std::optional<int64_t> tensor_split = spec.split_over(MeshAxis::tp);
  placed.add(MeshAxis::tp, tensor_split);
  const bool copied = mesh.size(MeshAxis::tp) > 1 && !tensor_split;
  if (copied) in_norm &= request.place.coordinate(MeshAxis::tp) == 0;
  const Box unsharded = TensorLayout(spec.shape, placed.splits).box(placed.coordinates);
  placed.add_shards(axes.sharded);
  TensorLayout layout(spec.shape, placed.splits);
  Box shard = layout.box(placed.coordinates);
  const int64_t rows = (unsharded.extent[0] + axes.shards - 1) / axes.shards;
  const bool owns_shard = layout.owns(placed.coordinates);
  return {spec, std::move(layout), unsharded, std::move(shard), rows, owns_shard, in_norm, copied};
}

Box shard_on(const TensorLayout& layout, const DeviceMesh& mesh, int64_t rank) {
  std::vector<int64_t> coordinates;
  for (const Split& split : layout.splits()) {
    if (split.axis == kShardAxis) {
      coordinates.push_back(mesh.coordinate(rank, kShardAxes));
      continue;
    }
    const auto axis =
        std::find_if(kMeshAxes.begin(), kMeshAxes.end(), [&](MeshAxis known) { return name(known) == split.axis; });
    TITAN_CHECK(axis != kMeshAxes.end(), split.axis);
    coordinates.push_back(mesh.coordinate(rank, *axis));
  }
  return layout.box(coordinates);
}

namespace {

/// A slot that holds at least `bytes`.
size_t add_slot(std::vector<int64_t>& slots, int64_t bytes) {
  slots.push_back(bytes);
  return slots.size() - 1;
}

/// With CPU offload and FSDP a slot holds a group and this rank's shard, which is copied to the device first.
bool copies_shard(const PlanRequest& request, const WeightGroupPlan& group) {
  return request.training.enable_cpu_offload && group.axes.shards > 1;
}

using BytesOf = std::function<int64_t(const WeightGroupPlan&)>;
/// The groups of some units, by unit.
using GroupsByUnit = std::vector<std::vector<WeightGroupPlan*>>;

/// Units use two sets of slots in turn, so that the groups of the next unit can be gathered while those of one are in
/// use. A set has a slot for each group of a unit.
void take_turns(std::vector<int64_t>& slots, const GroupsByUnit& units, size_t WeightGroupPlan::*slot,
                const BytesOf& bytes) {
  std::map<std::pair<size_t, size_t>, size_t> turns;
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t i = 0; i < units[u].size(); ++i) {
      const auto [mine, is_new] = turns.try_emplace({u % 2, i}, slots.size());
      if (is_new) add_slot(slots, 0);
      slots[mine->second] = std::max(slots[mine->second], bytes(*units[u][i]));
      units[u][i]->*slot = mine->second;
    }
  }
}

/// The groups that units with `role` (none: all units) use first and that are `wanted`; units without any are left out.
GroupsByUnit groups_by_unit(Plan& plan, std::optional<UnitRole> role,
                            const std::function<bool(const WeightGroupPlan&)>& wanted) {
  GroupsByUnit units;
  std::set<size_t> seen;
  for (const UnitPlan& unit : plan.units) {
    if (role && unit.role != *role) continue;
    std::vector<WeightGroupPlan*> groups;
    for (size_t g : unit.groups) {
      if (seen.insert(g).second && wanted(plan.groups[g])) groups.push_back(&plan.groups[g]);
    }
    if (!groups.empty()) units.push_back(std::move(groups));
  }
  return units;
}

/// The groups of a stage's first and last unit, if no other unit uses them. They can share a slot if there are units in
/// between, because the last one's weights are gathered while the unit before it runs.
std::vector<WeightGroupPlan*> end_groups(Plan& plan) {
  std::vector<WeightGroupPlan*> groups;
  for (const StagePlan& stage : plan.stages) {
    if (stage.last - stage.first < 3) continue;
    for (size_t u : {stage.first, stage.last - 1}) {
      if (plan.units[u].role == UnitRole::block || plan.units[u].groups.size() != 1) continue;
      WeightGroupPlan& group = plan.groups[plan.units[u].groups[0]];
      if (group.gathers) groups.push_back(&group);
    }
  }
  const bool distinct = groups.size() == 2 && groups[0] != groups[1];
  return distinct ? groups : std::vector<WeightGroupPlan*>();
}

/// Gradients narrowed for their reduction: one starts before the previous has ended, so neighbours alternate.
void assign_message_slots(Plan& plan) {
  const GroupsByUnit narrowed = groups_by_unit(
      plan, std::nullopt, [](const WeightGroupPlan& group) { return group.is_trained() && group.narrows_gradient(); });
  take_turns(plan.message_slots, narrowed, &WeightGroupPlan::message_slot, [](const WeightGroupPlan& group) {
    const int64_t sums = group.axes.shards > 1 ? group.trained_shard_numel() : 0;
    return (group.trained_numel() + sums) * size_of(group.reduce);
  });
}

}  // namespace

void assign_slots(Plan& plan) {
  assign_message_slots(plan);
  if (!plan.gathers_weights()) return;
  const BytesOf weight_bytes = [&](const WeightGroupPlan& group) {
    return group.gathered_bytes() + (copies_shard(plan.request, group) ? group.gathered_shard_bytes() : 0);
  };
  const BytesOf gradient_bytes = [&](const WeightGroupPlan& group) {
    const int64_t copied = copies_shard(plan.request, group) ? group.trained_shard_numel() : 0;
    return (group.trained_numel() + copied) * size_of(ElementType::float32);
  };
  const GroupsByUnit blocks =
      groups_by_unit(plan, UnitRole::block, [](const WeightGroupPlan& group) { return group.gathers; });
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
    const GroupsByUnit trained = groups_by_unit(
        plan, UnitRole::block, [](const WeightGroupPlan& group) { return group.gathers && group.is_trained(); });
    take_turns(plan.gradient_slots, trained, &WeightGroupPlan::gradient_slot, gradient_bytes);
  }
  std::vector<WeightGroupPlan*> ends;
  if (plan.request.parallelism.fsdp_reshard_after_forward == ReshardPolicy::always) ends = end_groups(plan);
  if (!ends.empty()) {
    const size_t shared = add_slot(plan.weight_slots, std::max(weight_bytes(*ends[0]), weight_bytes(*ends[1])));
    for (WeightGroupPlan* group : ends) group->weight_slot = shared;
  }
  std::set<const WeightGroupPlan*> of_blocks;
  for (const auto& groups : blocks) of_blocks.insert(groups.begin(), groups.end());
  for (WeightGroupPlan& group : plan.groups) {
    if (!group.gathers) continue;
    const bool is_block = of_blocks.contains(&group);
    const bool is_end = std::find(ends.begin(), ends.end(), &group) != ends.end();
    if (!(is_block && weights_rotate) && !is_end) {
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
      const GroupAxes axes = group_axes(model.units[owner], spec.group, request);
      ParameterPlan planned = plan_parameter(spec, axes, request);
      const size_t update = update_of(model.units[owner], spec, request);
      places.push_back({spec, std::move(planned.layout), {stages.begin(), stages.end()}, update});
    }
  }
  return places;
}

}  // namespace titan
