// Matrices whose updates are computed as a whole: who computes each, and what is sent for it.
#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "plan_parts.h"
#include "titan/base/error.h"

namespace titan {
namespace {

/// The axes whose ranks hold different parts of the parameter.
std::vector<MeshAxis> axes_of_parts(const WeightGroupPlan& group, const ParameterPlan& parameter) {
  std::vector<MeshAxis> axes = group.axes.sharded;
  for (const AxisSplit& split : parameter.spec.splits) axes.push_back(split.axis);
  return axes;
}

void check_composition(const PlanRequest& request) {
  const auto refuse = [](const char* option) {
    throw Error(ExitCode::bad_config,
                fmt::format("an optimizer that updates whole matrices does not work with {}: set it to false", option));
  };
  if (request.training.enable_cpu_offload) refuse("training.enable_cpu_offload");
  if (request.optimizer.early_step_in_backward) refuse("optimizer.early_step_in_backward");
}

double cost_of(const Plan& plan, const ParameterPlan& parameter) {
  const auto& operations = plan.request.updates[parameter.update].operations;
  const std::vector<int64_t>& shape = parameter.spec.shape;
  return operations ? operations(shape[0], shape[1]) : static_cast<double>(parameter.spec.numel());
}

int64_t own_member(const Plan& plan, std::span<const int64_t> members) {
  return std::find(members.begin(), members.end(), plan.request.place.rank) - members.begin();
}

Box part_on(const Plan& plan, const WeightGroupPlan& group, const WholeMatrix& matrix, int64_t rank) {
  return shard_on(group.parameters[matrix.parameter].layout, plan.request.place.mesh, rank);
}

/// Of the ranks that hold the same part, the one in the owner's replica sends it, unless the owner has it.
bool sends_part(const Plan& plan, const WeightGroupPlan& group, const WholeMatrix& matrix, int64_t rank,
                int64_t owner) {
  const std::vector<MeshAxis> parts = axes_of_parts(group, group.parameters[matrix.parameter]);
  for (const MeshAxis axis : axes_of(group.matrix_communicator)) {
    const bool copies = std::find(parts.begin(), parts.end(), axis) == parts.end();
    const DeviceMesh& mesh = plan.request.place.mesh;
    if (copies && mesh.coordinate(rank, axis) != mesh.coordinate(owner, axis)) return false;
  }
  const Box part = part_on(plan, group, matrix, rank);
  return part.numel() > 0 && !(part == part_on(plan, group, matrix, owner));
}

int64_t element_size(const Plan& plan, const ParameterPlan& parameter) {
  return size_of(plan.request.updates[parameter.update].matrix_type);
}

/// Of a group whose matrices one rank has whole.
MatrixBytes bytes_without_exchange(const Plan& plan, const WeightGroupPlan& group) {
  MatrixBytes bytes;
  for (const ParameterPlan& parameter : group.parameters) {
    if (!parameter.spec.trainable || !plan.request.updates[parameter.update].whole_matrices) continue;
    bytes.largest = std::max(bytes.largest, parameter.spec.numel() * element_size(plan, parameter));
    bytes.operations += cost_of(plan, parameter);
    bytes.updated.push_back({parameter.spec.shape[0], parameter.spec.shape[1]});
  }
  return bytes;
}

}  // namespace

void find_matrices(const PlanRequest& request, WeightGroupPlan& group) {
  std::vector<MeshAxis> axes;
  std::vector<WholeMatrix> matrices;
  int64_t max_sharing_ranks = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < group.parameters.size(); ++i) {
    const ParameterPlan& parameter = group.parameters[i];
    if (!parameter.spec.trainable || !request.updates[parameter.update].whole_matrices) continue;
    check_composition(request);
    TITAN_CHECK(parameter.spec.shape.size() == 2 && "a whole matrix has two dimensions", parameter.spec.name,
                parameter.spec.shape);
    matrices.push_back({i});
    max_sharing_ranks = std::min(max_sharing_ranks, request.updates[parameter.update].max_sharing_ranks);
    for (const MeshAxis axis : axes_of_parts(group, parameter)) axes.push_back(axis);
  }
  // Replicas share the work, too, where each would compute what any other computes.
  std::vector<MeshAxis> with_replicas = axes;
  with_replicas.insert(with_replicas.end(), group.axes.replicated.begin(), group.axes.replicated.end());
  std::sort(with_replicas.begin(), with_replicas.end());
  with_replicas.erase(std::unique(with_replicas.begin(), with_replicas.end()), with_replicas.end());
  const bool shares = request.place.mesh.size(with_replicas) <= max_sharing_ranks;
  if (shares) axes = std::move(with_replicas);
  std::sort(axes.begin(), axes.end());
  axes.erase(std::unique(axes.begin(), axes.end()), axes.end());
  group.measures_matrices = shares || std::all_of(group.axes.replicated.begin(), group.axes.replicated.end(),
                                                  [&](MeshAxis axis) { return request.place.coordinate(axis) == 0; });
  const DeviceMesh& mesh = request.place.mesh;
  if (mesh.size(axes) == 1) return;  // one rank has them whole, and `step` updates them
  group.matrices = std::move(matrices);
  group.matrix_communicator = mesh.communicator_over(communicator_names::kMatrix, axes);
}

void assign_matrices(Plan& plan) {
  struct Entry {
    double cost;
    WeightGroupPlan* group;
    WholeMatrix* matrix;
  };
  std::vector<Entry> all;
  for (WeightGroupPlan& group : plan.groups) {
    for (WholeMatrix& matrix : group.matrices)
      all.push_back({cost_of(plan, group.parameters[matrix.parameter]), &group, &matrix});
  }
  // The costliest matrices are assigned first, each to the member with the least work so far: the cheap ones that come
  // last even out the work. The sort is stable, because all ranks must find the same owners.
  std::stable_sort(all.begin(), all.end(), [](const Entry& a, const Entry& b) { return a.cost > b.cost; });
  std::map<std::string, std::vector<double>> work;
  for (const Entry& entry : all) {
    const std::string& communicator = entry.group->matrix_communicator;
    std::vector<double>& loads = work[communicator];
    if (loads.empty()) loads.resize(static_cast<size_t>(ranks_of(plan, communicator)));
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += entry.cost;
    entry.matrix->owner = least - loads.begin();
  }
}

MatrixParts matrix_parts(const Plan& plan, const WeightGroupPlan& group, const WholeMatrix& matrix) {
  MatrixParts parts;
  const std::vector<int64_t> members = members_of(plan, group.matrix_communicator);
  parts.own = own_member(plan, members);
  const int64_t owner = members[static_cast<size_t>(matrix.owner)];
  for (const int64_t rank : members) {
    parts.boxes.push_back(part_on(plan, group, matrix, rank));
    parts.sends.push_back(sends_part(plan, group, matrix, rank, owner));
  }
  return parts;
}

MatrixBytes matrix_bytes(const Plan& plan, const WeightGroupPlan& group) {
  MatrixBytes bytes;
  if (group.matrices.empty()) return bytes_without_exchange(plan, group);
  const std::vector<int64_t> members = members_of(plan, group.matrix_communicator);
  const int64_t here = plan.request.place.rank, own = own_member(plan, members);
  for (const WholeMatrix& matrix : group.matrices) {
    const ParameterPlan& parameter = group.parameters[matrix.parameter];
    const int64_t size = element_size(plan, parameter);
    bytes.parts += parameter.shard.numel() * size;
    if (matrix.owner != own) {
      const int64_t shard = parameter.shard.numel() * size, owner = members[static_cast<size_t>(matrix.owner)];
      if (sends_part(plan, group, matrix, here, owner)) bytes.collected += shard;
      bytes.largest = std::max(bytes.largest, shard);
      bytes.shards += shard;
      continue;
    }
    const int64_t whole = parameter.spec.numel() * size;
    bytes.owned += whole;
    bytes.largest = std::max(bytes.largest, whole);
    for (const int64_t rank : members) {
      if (rank != here) bytes.returned += part_on(plan, group, matrix, rank).numel() * size;
    }
    bytes.operations += cost_of(plan, parameter);
    bytes.updated.push_back({parameter.spec.shape[0], parameter.spec.shape[1]});
  }
  return bytes;
}

}  // namespace titan
