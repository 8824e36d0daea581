// The plan of a checked config for any number of ranks, without starting one, for `plan` and the memory estimate.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "titan/config/job_config.h"
#include "titan/plan/plan.h"

namespace titan {

struct PlannedJob {
  MeshPlace place;
  ModelDescription model;
  Plan plan;
};

/// The plan of rank `rank` of `world`. `on_gpu`: as in make_plan_request. A vocabulary that depends on the tokenizer is
/// read from its file; without the file the smallest possible one is used, with a line on standard error. Throws
/// Error(bad_config) for degrees that do not fit. `room`: as in choose_loss_chunks.
PlannedJob plan_job(const JobConfig& config, int64_t world, int64_t rank, bool on_gpu,
                    const std::optional<int64_t>& room = {});

/// What a plan chose for training.loss_chunks = 0.
std::string loss_chunks_line(const Plan& plan);

/// memory_estimation.enable: the bytes of rank `rank` by purpose and by unit, and settings to change if they exceed
/// `room_bytes`, which `room_words` describe ("memory per rank: 12 GiB"); none: unknown.
std::vector<std::string> estimate_lines(const JobConfig& config, const PlannedJob& job, bool on_gpu,
                                        const std::optional<int64_t>& room_bytes, const std::string& room_words);

}  // namespace titan
