// The plan of a checked config for any number of ranks, without starting one: what `plan` and the memory estimate show.
#pragma once

#include "titan/config/job_config.h"
#include "titan/parallel/plan.h"

namespace titan {

struct PlannedJob {
  MeshPlace place;
  ModelDescription model;
  Plan plan;
};

/// Rank `rank` of `world`; what is planned of validation is that of a GPU or of a CPU (make_plan_request). A vocabulary
/// that follows the tokenizer is asked of its file, or taken as small as it may be where that is not there, which is
/// said. Throws Error(bad_config) for degrees that do not fit.
PlannedJob plan_job(const JobConfig& config, int64_t world, int64_t rank, bool on_gpu);

/// The plan of another rank of a planned job, or of a job with other settings and the same model. Throws as plan_job.
Plan plan_rank(const JobConfig& config, const ModelDescription& model, int64_t world, int64_t rank, bool on_gpu);

/// memory_estimation.enable: what one rank takes by purpose and by unit, and what to change when it is more than is
/// left to one of `host_ranks` ranks of this machine. Bytes are those of `rank`.
std::vector<std::string> estimate_lines(const JobConfig& config, int64_t world, int64_t rank, int64_t host_ranks);

}  // namespace titan
