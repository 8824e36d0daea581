// The options that decide which batches follow each other, kept with a checkpoint's data position: a run that goes on
// with others is told which of them changed. What the corpus holds is known by its fingerprint instead (StreamState).
#pragma once

#include <nlohmann/json.hpp>

#include "titan/config/job_config.h"

namespace titan {

/// Their values, by their keys; those that have no effect on this run's data are left out.
nlohmann::json stream_options(const JobConfig& config);

/// Adds them to a data position as checkpoints hold it.
void note_stream_options(nlohmann::json& position, const JobConfig& config);

/// Throws Error(bad_config) with each option that was another when the position was saved. Positions of versions that
/// did not note them pass.
void check_stream_options(const nlohmann::json& position, const JobConfig& config);

}  // namespace titan
