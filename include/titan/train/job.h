// From a checked config to what the other parts ask for: model request, plan request, data options. Pure translation.
// The parts below do not know the config's sections; here alone is written which option means what to them, and which
// option a model's refusal is about.
#pragma once

#include <optional>
#include <vector>

#include "titan/config/job_config.h"
#include "titan/config/problem.h"
#include "titan/data/batch_stream.h"
#include "titan/data/document_source.h"
#include "titan/model/model.h"
#include "titan/parallel/plan.h"
#include "titan/train/batch.h"

namespace titan {

ModelRequest make_model_request(const JobConfig& config, int64_t tokenizer_vocabulary);
RecomputeSelection make_recompute_selection(const JobConfig& config);
/// None when the model has no converter to float8.
std::optional<Float8Request> make_float8_request(const JobConfig& config);
/// The mesh that the config's degrees make of `world` ranks. Throws Error(bad_config) when they do not fit.
DeviceMesh make_mesh(const JobConfig& config, int64_t world);
PlanRequest make_plan_request(const JobConfig& config, const MeshPlace& place = {});
/// The places of every sample that this rank reads.
SequenceShare make_sequence_share(const JobConfig& config, const MeshPlace& place);
/// Microbatches of one step: global / (local · data-parallel degree).
/// Throws Error(bad_config) when the ranks of the mesh do not divide it.
int64_t accumulation_steps(const JobConfig& config, const MeshPlace& place = {});

DatasetOptions make_training_dataset(const JobConfig& config);
DatasetOptions make_validation_dataset(const JobConfig& config);
BatchPlan make_batch_plan(const JobConfig& config, const MeshPlace& place = {});
BatchPlan make_validation_plan(const JobConfig& config, const MeshPlace& place = {});

/// The model part's own check of a config: does the family have the flavor, do the sizes fit together. Joins the list
/// that config prints; needs no tokenizer.
std::vector<Problem> check_model(const JobConfig& config, const Origins& origins);

}  // namespace titan
