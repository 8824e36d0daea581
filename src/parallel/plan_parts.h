// The steps that make a plan, in the order make_plan takes them; each fills its own fields.
#pragma once

#include "titan/parallel/program.h"

namespace titan {

/// The layout of one parameter over the mesh of `request`, seen from its rank.
ParameterPlan plan_parameter(const ParameterSpec& spec, const PlanRequest& request);

/// Which slot each group's gathered weights and unreduced gradients use.
void assign_slots(Plan& plan);
/// The stage of this rank with this number in the model's order.
const StagePlan& stage_numbered(const Plan& plan, int64_t number);

/// Float8 weights are cast once a microbatch and their columns kept for its backward: where weights are resident and
/// microbatches run one after the other.
bool keeps_float8_weights(const PlanRequest& request);
/// Traces one microbatch through a unit on this rank.
std::shared_ptr<const UnitTrace> trace_unit(const Plan& plan, const PlanRequest& request, const UnitPlan& unit,
                                            const UnitDescription& description);

/// What the programs of one step send, and what units communicate within themselves.
void add_traffic(Plan& plan, std::span<const RepeatedProgram> step);
/// Bytes per step of activations and moments that cross between host and device.
void add_offload_traffic(Plan& plan);
/// Of a step, which is these programs, and of a validation.
void add_memory(Plan& plan, const ModelDescription& model, std::span<const RepeatedProgram> step);
/// The same job with a validation's batch for a microbatch; it has one.
PlanRequest validation_request(const PlanRequest& training);
/// The most that a validation's batch holds at any moment of its way through this rank's units, itself included.
int64_t validation_forward_bytes(const Plan& plan, const ModelDescription& model);

}  // namespace titan
