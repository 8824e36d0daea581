// The plan of a checked config for any number of ranks, without starting one, for `plan` and the memory estimate. For
// GPUs that are not present, also predicts whether it fits, the step time and faster layouts.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "titan/config/job_config.h"
#include "titan/tools/simulate.h"

namespace titan {

struct PlannedJob {
  MeshPlace place;
  ModelDescription model;
  Plan plan;
};

/// The plan of rank `rank` of `world`. `on_gpu`: as in make_plan_request. A vocabulary that depends on the tokenizer is
/// read from its file; without the file the smallest possible one is used, with a line on standard error. Throws
/// Error(bad_config) for degrees that do not fit.
PlannedJob plan_job(const JobConfig& config, int64_t world, int64_t rank, bool on_gpu);

/// memory_estimation.enable: the bytes of rank `rank` by purpose and by unit, and settings to change if they exceed the
/// share of one of `host_ranks` ranks in this machine's free memory.
std::vector<std::string> estimate_lines(const JobConfig& config, int64_t world, int64_t rank, int64_t host_ranks);

// ---- predictions for GPUs that are not present (plan_prediction.cpp)

struct Prediction {
  Hardware hardware;
  int64_t world = 1;
  std::vector<Plan> plans;       // one rank per pipeline coordinate, the one with the largest shards
  size_t peak = 0;               // index of the plan that needs most memory
  SimulatedStep step;            // at the GPU's likely rates
  SimulatedStep good;            // at its good ones
  double tokens_per_second = 0;  // per GPU, at likely rates

  double tokens_per_second_at(const SimulatedStep& simulated) const;
  double flops() const;  // model FLOPs of a step, torchtitan's convention, all GPUs
  /// None: the GPU's peak is unknown (peak_flops_of).
  std::optional<double> mfu(const SimulatedStep& simulated) const;
  double reserved_bytes() const;  // by the allocator on the peak rank
  double needed_bytes() const;    // reserved_bytes and memory outside the allocator
  bool fits() const { return needed_bytes() <= hardware.memory_bytes; }
};

/// Throws Error(bad_config) for invalid layouts.
Prediction predict(const JobConfig& config, const ModelDescription& model, int64_t world, const Hardware& hardware,
                   bool keep_events = false);

std::string speed_line(const Prediction& prediction);
/// Whether it fits, what would fit if not, the step time and its parts.
std::vector<std::string> prediction_lines(const Prediction& prediction, const JobConfig& config,
                                          const ModelDescription& model);
/// `plan`: of the requested rank.
nlohmann::json prediction_json(const Prediction& prediction, const Plan& plan);

/// The fastest layouts that fit. Varies tensor and pipeline parallel degrees, schedules, replicas, recomputation and
/// local batch sizes, but not the global batch, context parallelism and precision.
std::vector<std::string> search_lines(const JobConfig& config, const ModelDescription& model, int64_t world,
                                      const Hardware& hardware);

}  // namespace titan
