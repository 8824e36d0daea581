// Predictions for GPUs that are not present: whether a job fits, how long a step takes, and faster layouts.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "titan/config/job_config.h"
#include "titan/estimate/simulate.h"

namespace titan {

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

/// Bytes of a GPU that a job's tensors may take.
int64_t room_of(const Hardware& hardware);

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
