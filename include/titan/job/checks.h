// The checks of a job that need more than one option: pure functions of the config, the model's description and facts
// that are passed to them, made before any rank is started. All problems are reported together.
//
// In the order in which a user meets them:
//   1. spelling, types and ranges, then options without effect (config/load.h)
//   2. check_contradictions: options against each other
//   3. check_sources: the corpora's options
//   4. check_model: the model's sizes, then degrees, units and layers that options name, pipeline, parameter groups
//   5. world_problems: the number of ranks
//   6. device_problems (device_problems.h): device and hosts
//   7. check_start (start.h): processors and input files
// restart_problems is for runs that a supervisor may start again.
// A later check may rely on the earlier ones, and load_config leaves out what they have reported. What
// needs the content of a file (tokenizer, corpus, checkpoint) is found by the code that reads it.
#pragma once

#include <vector>

#include "titan/config/load.h"
#include "titan/config/problem.h"
#include "titan/plan/description.h"
#include "titan/plan/device_mesh.h"

namespace titan {

/// check_contradictions, check_sources and check_model, for every command that loads a config.
std::vector<ConfigCheck> job_checks();

/// Contradictions between options, whatever the model and the number of ranks.
std::vector<Problem> check_contradictions(const JobConfig& config, const Origins& origins);

/// Contradictions between options of the corpus that only a reader of their values can find.
std::vector<Problem> check_sources(const JobConfig& config, const Origins& origins);

/// The model's part of the checks: the architecture has the flavor, and the sizes fit together. Its problems are
/// reported with the config's own; needs no tokenizer.
std::vector<Problem> check_model(const JobConfig& config, const Origins& origins);

/// Degrees that do not multiply to `world`, a global batch that its data-parallel ranks cannot split (each with the
/// nearest numbers that fit), and a seed checkpoint of several ranks. Notes on options without effect on that many
/// ranks. A dry run uses its own number of ranks.
std::vector<Problem> world_problems(const JobConfig& config, const Origins& origins, int64_t world);

/// What keeps gradients from being in bf16, if training.gradient_dtype asks for that: whatever adds to a gradient of a
/// block. world_problems includes it; memory_settings.cpp calls it by itself for each setting that it tries.
std::vector<Problem> check_gradient_dtype(const JobConfig& config, const Origins& origins, const DeviceMesh& mesh);

/// Options with which a restart would lose all steps or repeat them for ever: no checkpoints, or a start that always
/// goes back to an earlier step.
std::vector<Problem> restart_problems(const JobConfig& config, const Origins& origins);

/// The smallest number of ranks for the config's degrees, or comm.world_size if set.
int64_t fewest_ranks(const JobConfig& config);

// Degrees that the model and the sequence lengths allow, checked before any rank is started.

/// Tensor-parallel ranks must split every head, row and column of a block evenly; with context-parallel ranks, every
/// sequence. `model` null: its sizes contradict each other, and only sequences are checked.
std::vector<Problem> check_degrees(const ModelDescription* model, const JobConfig& config, const Origins& origins);

/// The problems of the pipeline, for the config's report; no problem if the config asks for no pipeline.
std::vector<Problem> check_pipeline(const JobConfig& config, const ModelDescription& model, const Origins& origins);

}  // namespace titan
