// Builds a pipeline from the config's options: its stages, their ranks, and the schedule.
#pragma once

#include <vector>

#include "titan/config/job_config.h"
#include "titan/plan/description.h"
#include "titan/plan/plan.h"
#include "titan/schedule/pipeline_plan.h"

namespace titan {

/// The pipeline of a config with parallelism.pipeline_parallel_degree above 1, with all problems that prevent it.
PipelinePlan make_pipeline(const JobConfig& config, const ModelDescription& model);

/// Splits the batch of `request` into the pipeline's microbatches and sets the stages of its place. Does nothing
/// without a pipeline. Throws Error(bad_config) with the first problem.
void add_pipeline(PlanRequest& request, const JobConfig& config, const ModelDescription& model);
/// The same with the job's pipeline, which all its ranks share.
void add_pipeline(PlanRequest& request, const PipelinePlan& pipeline, const ModelDescription& model);

}  // namespace titan
