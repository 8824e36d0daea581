// From the config's options to a pipeline: which stages there are, who runs them, in which order.
#pragma once

#include <vector>

#include "titan/config/job_config.h"
#include "titan/config/problem.h"
#include "titan/model/description.h"
#include "titan/parallel/plan.h"
#include "titan/schedule/pipeline_plan.h"

namespace titan {

/// The pipeline of a config with parallelism.pipeline_parallel_degree above 1, with everything that keeps it from being
/// built.
PipelinePlan make_pipeline(const JobConfig& config, const ModelDescription& model);

/// The same problems as lines of the config's report. None without a pipeline.
std::vector<Problem> check_pipeline(const JobConfig& config, const ModelDescription& model, const Origins& origins);

/// Cuts what `request` asks for into the pipeline's microbatches and gives it the stages of its place. Does nothing
/// without a pipeline. Throws Error(bad_config) with the first problem.
void add_pipeline(PlanRequest& request, const JobConfig& config, const ModelDescription& model);
/// The same with the job's pipeline, which is one for all its ranks.
void add_pipeline(PlanRequest& request, const PipelinePlan& pipeline, const ModelDescription& model);

}  // namespace titan
