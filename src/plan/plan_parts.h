// The steps of make_plan, in order; each fills its own fields.
#pragma once

#include "titan/plan/program.h"

namespace titan {

/// How one of a unit's weight groups lies over the mesh of `request`. Throws InvariantError if its parameters are split
/// over different data axes.
GroupAxes group_axes(const UnitDescription& unit, size_t group, const PlanRequest& request);
/// The layout of one parameter over the mesh of `request`, on its rank. Throws Error(bad_config) if an axis does not
/// divide the dimension that is split over it.
ParameterPlan plan_parameter(const ParameterSpec& spec, const GroupAxes& axes, const PlanRequest& request);

/// What the model's units return beside hidden states; those of one name are one statistic. All ranks have all of them.
void add_statistics(Plan& plan, const ModelDescription& model);
/// What the model's unit `index` takes, hands on and reports, after add_statistics.
void add_ends(const Plan& plan, const ModelDescription& model, size_t index, UnitPlan& unit);
/// Throws InvariantError unless the trace has the tensors that the unit takes and hands on at its ends.
void check_ends(const UnitTrace& trace, const UnitPlan& unit);

/// Which of the request's updates steps the parameter.
size_t update_of(const UnitDescription& unit, const ParameterSpec& spec, const PlanRequest& request);
/// The trained parameters of the whole model that update `update` steps, in the model's order.
std::vector<ParameterSpec> stepped_by(size_t update, const ModelDescription& model, const PlanRequest& request);
/// One of a unit's weight groups on the rank of `request`, without dtypes, slots and owners of matrices.
WeightGroupPlan plan_group(const UnitDescription& unit, size_t index, const PlanRequest& request);
/// The group's matrices that are updated as a whole, and their communicator. Throws Error(bad_config) if the job's
/// options do not allow such updates.
void find_matrices(const PlanRequest& request, WeightGroupPlan& group);
/// Assigns each of these matrices to a rank: the most expensive first, to the rank with the least work so far.
void assign_matrices(Plan& plan);
/// Assigns a slot to each group's gathered weights and unreduced gradients.
void assign_slots(Plan& plan);
/// The stage of this rank with this number in the model's order.
const StagePlan& stage_numbered(const Plan& plan, int64_t number);

/// Traces one microbatch through a unit on this rank.
std::shared_ptr<const UnitTrace> trace_unit(const Plan& plan, const PlanRequest& request, const UnitPlan& unit,
                                            const UnitDescription& description);

/// Traffic of the programs of one step, and of communication within units.
void add_traffic(Plan& plan, std::span<const RepeatedProgram> step);
/// Bytes per step of activations and moments that cross between host and device.
void add_offload_traffic(Plan& plan);
/// The memory of a step, which is these programs, and of a validation.
void add_memory(Plan& plan, const ModelDescription& model, std::span<const RepeatedProgram> step);
/// The same job with the validation batch as its microbatch; validation must be enabled.
PlanRequest validation_request(const PlanRequest& training);
/// Peak bytes of a validation batch in the forward of this rank's units, the batch included.
int64_t validation_forward_bytes(const Plan& plan, const ModelDescription& model);

}  // namespace titan
