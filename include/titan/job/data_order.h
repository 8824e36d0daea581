// data.order = "megatron": what a job asks of the stream's MegatronOrder, and its checks.
#pragma once

#include <vector>

#include "titan/config/job_config.h"
#include "titan/config/problem.h"
#include "titan/plan/device_mesh.h"
#include "titan/stream/megatron_order.h"

namespace titan {

bool reads_in_megatron_order(const JobConfig& config);

/// The samples of training: the first part of data.megatron_split, for all steps of the run.
MegatronOrderRequest make_training_order(const JobConfig& config, const MeshPlace& place);

/// The samples of validation: of training's file (`is_training_file`) the second part of data.megatron_split, of
/// another file all. Their number is Megatron's for as many validations as one every validation.freq steps and one at
/// the end; with validation.steps = -1 one epoch.
MegatronOrderRequest make_validation_order(const JobConfig& config, const MeshPlace& place, bool is_training_file);

/// What contradicts data.order = "megatron"; part of check_contradictions.
void check_data_order(const JobConfig& config, const Origins& origins, std::vector<Problem>& problems);

/// With data.order = "megatron" and validation on training's file: a data.megatron_split that leaves nothing for it.
std::vector<Problem> check_validation_share(const JobConfig& config, const Origins& origins);

}  // namespace titan
