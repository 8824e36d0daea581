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

/// What one microbatch looks like on this rank, computed in `compute`.
ActivationShape activation_shape(const PlanRequest& request, ElementType compute);
/// Float8 weights are cast once a microbatch and their columns kept for its backward: where weights are resident and
/// microbatches run one after the other.
bool keeps_float8_weights(const PlanRequest& request);
/// Keys and values of one microbatch's tokens here, as ring attention sends them.
int64_t key_value_numel(const PlanRequest& request, const UnitDescription& unit);

/// What the programs of one step send, and what units communicate within themselves.
void add_traffic(Plan& plan, const ModelDescription& model, std::span<const RepeatedProgram> step);
/// Bytes per step of activations and moments that cross between host and device.
void add_offload_traffic(Plan& plan);
/// Of a step, which is these programs, and of a validation.
void add_memory(Plan& plan, const ModelDescription& model, std::span<const RepeatedProgram> step);
/// The same job with a validation's batch for a microbatch; it has one.
PlanRequest validation_request(const PlanRequest& training);
/// The most that a validation's batch holds at any moment of its way through this rank's units, itself included.
int64_t validation_forward_bytes(const Plan& plan, const ModelDescription& model);

/// Tokens whose logits are there at once, and words whose logits a rank of several makes.
int64_t chunk_rows(const PlanRequest& request);
int64_t own_words(const PlanRequest& request, const ModelDescription& model);

}  // namespace titan
