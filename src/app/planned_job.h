// The plan of a checked config for any number of ranks, without starting one: what `plan` and the memory estimate show;
// and whether it fits GPUs that are not there, how long its step would take, and which layouts would be faster.
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

/// Rank `rank` of `world`. `on_gpu`: as for make_plan_request. A vocabulary that is the tokenizer's is read from its
/// file; without the file it is the smallest possible, with a line on standard error. Throws Error(bad_config) for
/// degrees that do not fit.
PlannedJob plan_job(const JobConfig& config, int64_t world, int64_t rank, bool on_gpu);

/// memory_estimation.enable: what one rank takes by purpose and by unit, and what to change when it is more than is
/// left to one of `host_ranks` ranks of this machine. Bytes are those of `rank`.
std::vector<std::string> estimate_lines(const JobConfig& config, int64_t world, int64_t rank, int64_t host_ranks);

// ---- on GPUs that are not there (plan_prediction.cpp)

struct Prediction {
  Hardware hardware;
  int64_t world = 1;
  std::vector<Plan> plans;  // one rank of each pipeline coordinate, the one with the largest shards
  size_t peak = 0;          // of them, the one that needs most
  SimulatedStep step;
  double tokens_per_second = 0;  // of each GPU

  double flops() const;               // of the model in a step, torchtitan's convention, all GPUs
  std::optional<double> mfu() const;  // none: the GPU's peak is unknown (peak_flops_of)
  double reserved_bytes() const;      // by the allocator on that rank
  double needed_bytes() const;        // with what is beside it
  bool fits() const { return needed_bytes() <= hardware.memory_bytes; }
};

/// Throws Error(bad_config) for layouts that are refused.
Prediction predict(const JobConfig& config, const ModelDescription& model, int64_t world, const Hardware& hardware,
                   bool keep_events = false);

std::string speed_line(const Prediction& prediction);
/// The verdict, what would fit when it does not, the time and its parts.
std::vector<std::string> prediction_lines(const Prediction& prediction, const JobConfig& config,
                                          const ModelDescription& model);
/// `plan`: of the rank that was asked for.
nlohmann::json prediction_json(const Prediction& prediction, const Plan& plan);

/// The fastest layouts that fit. Tensor and pipeline parallel degrees, schedules, replicas, recomputation and local
/// batch sizes vary; the global batch, context parallelism and precision do not.
std::vector<std::string> search_lines(const JobConfig& config, const ModelDescription& model, int64_t world,
                                      const Hardware& hardware);

}  // namespace titan
