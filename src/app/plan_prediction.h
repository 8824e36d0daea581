// Whether a job fits GPUs that are not there, how long its step would take, and which layouts would be faster.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "titan/config/job_config.h"
#include "titan/tools/simulate.h"

namespace titan {

struct Prediction {
  Hardware hardware;
  int64_t world = 1;
  std::vector<Plan> plans;  // one rank of each pipeline coordinate, the one with the largest shards
  size_t peak = 0;          // of them, the one that needs most
  SimulatedStep step;
  double tokens_per_second = 0;  // of each GPU

  double reserved_bytes() const;  // by the allocator on that rank
  double needed_bytes() const;    // with what is beside it
  bool fits() const { return needed_bytes() <= hardware.memory_bytes; }
};

/// Throws Error(bad_config) for layouts that are refused.
Prediction predict(const JobConfig& config, const ModelDescription& model, int64_t world, const Hardware& hardware,
                   bool keep_events = false);

/// The verdict, what would fit when it does not, the time and its parts.
std::vector<std::string> prediction_lines(const Prediction& prediction, const JobConfig& config,
                                          const ModelDescription& model);
/// `plan`: of the rank that was asked for.
nlohmann::json prediction_json(const Prediction& prediction, const Plan& plan);

/// Tensor and pipeline parallel degrees, replicas, recomputation and local batch sizes are tried; the global batch,
/// context parallelism and precision stay. The fastest that fit, and the config as it is.
std::vector<std::string> search_lines(const JobConfig& config, const ModelDescription& model, int64_t world,
                                      const Hardware& hardware);

}  // namespace titan
