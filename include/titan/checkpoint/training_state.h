// The state dict of a run under torchtitan's names: model, optimizer moments and settings, schedule, data position and
// progress. Knows no trainer: the trainer fills these structs to save and reads them after a load.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "titan/checkpoint/load.h"
#include "titan/checkpoint/save.h"
#include "titan/config/job_config.h"

namespace titan {

/// A TOML-based release of torchtitan; names and types of all state except the model differ between them.
enum class TorchtitanRelease { december_2024, february_2026 };

/// A parameter and its optimizer state. Tensors are this rank's shards, undefined if it holds none. Names, shapes,
/// boxes and `trained` are equal on all ranks, since each rank plans the whole checkpoint.
struct SavedParameter {
  std::string name;
  std::vector<int64_t> shape;
  BoxOfRank box_of;
  at::Tensor master;  // [extents of this rank's box]
  /// [extents of this rank's box] each, by name in torch's state; none if it is not trained.
  std::vector<std::pair<std::string, at::Tensor>> moments;
  bool trained = true;    // has moments, on some rank
  at::Tensor steps = {};  // fp32 scalar: how many steps the moments have seen; undefined: as many as the run
  double lr_multiplier = 1, weight_decay_multiplier = 1;  // of its parameter group
  OptimizerKind optimizer = OptimizerKind::adamw;         // of torch, which keeps such a state
  bool counts_steps = true;                               // torch's state of it has `steps`
  /// Of the tensors that this rank does not hold: all ranks describe the same checkpoint.
  at::ScalarType master_type = at::kFloat, moment_type = at::kFloat;
};

/// The data position of torchtitan's loader on one data-parallel rank.
struct SamplePosition {
  int64_t ranks = 1;                 // data-parallel ranks that read different data
  int64_t samples = 0;               // documents of the rank's part read in this epoch
  std::vector<int32_t> left_tokens;  // not yet packed into a sequence
};

/// The progress of a run in a checkpoint of any program and release. What titan wrote is kept as it is, since a
/// conversion passes it on.
struct SavedProgress {
  int64_t step = 0;                                      // steps done
  std::optional<int64_t> tokens = std::nullopt;          // seen by all ranks together; empty: not saved
  nlohmann::json data_position = nullptr;                // state of the data stream; null: none
  int64_t data_ranks = 1;                                // ranks that read different data
  nlohmann::json guard = nullptr;                        // state of the spike guard; null: none
  nlohmann::json counters = nullptr;                     // what the run has counted so far; null: unknown
  std::optional<SamplePosition> samples = std::nullopt;  // torchtitan's position instead of `data_position`
};

/// The key of the spike guard's state.
inline constexpr const char* kGuardKey = "train_state.titan_guard";
/// The key of the run's counters. Checkpoints of titan without it (before December 2026) counted skipped steps as steps
/// of the optimizer.
inline constexpr const char* kCountersKey = "train_state.titan_counters";
/// The key of the data stream's state.
inline constexpr const char* kPositionKey = "dataloader.titan_stream";
/// The key of torchtitan's loader state of a data-parallel rank.
std::string loader_key(int64_t rank);

/// True if a run can resume from it; false for the model alone.
bool holds_run(const CheckpointIndex& index);
/// True if it has optimizer state.
bool holds_moments(const CheckpointIndex& index);

CheckpointState describe_model(std::span<const SavedParameter> parameters);
/// The whole state dict, as torchtitan's last TOML release loads it. `lr`: of the last step, before the multipliers of
/// parameter groups.
CheckpointState describe_run(std::span<const SavedParameter> parameters, const OptimizerSection& optimizer, double lr,
                             const SavedProgress& progress);
/// The entries `dataloader.*` and `train_state.*`, complete for a strict load by `release`. Its data loaders start from
/// the beginning: they cannot represent our position, which has a separate key.
CheckpointState describe_progress(const SavedProgress& progress, TorchtitanRelease release);

/// Step, tokens and data-parallel ranks. Throws MismatchError for a wrong type, DamageError for impossible values.
/// Requires holds_run().
SavedProgress read_progress(OpenCheckpoint& checkpoint);
/// `number` as a count; throws DamageError if it is negative or not an integer.
int64_t stored_count(const std::string& name, double number);
/// The number of data-parallel ranks with a loader state.
int64_t loader_states(const CheckpointIndex& index);
/// Our data position; null: none. Throws PickleError.
PickleRef read_titan_position(OpenCheckpoint& checkpoint);
/// True if it has torchtitan's lists of losses and they are not empty.
bool holds_past_losses(OpenCheckpoint& checkpoint);

/// Loads the shards of `rank` in place, and returns the progress: nothing if only the model was requested or stored.
/// Adds to `notes` what was not restored and why. `leave`: values of checkpoint.exclude_from_loading. If the checkpoint
/// holds the model alone, only that is restored. `data_rank`: the data-parallel rank whose data position is read.
/// `ranks`: number of ranks that load. If nothing is skipped, each also reads a part of the tensors that no rank needs,
/// so that every block's hash is checked. Throws what OpenCheckpoint::load throws.
std::optional<SavedProgress> restore_run(OpenCheckpoint& checkpoint, std::span<const SavedParameter> parameters,
                                         int64_t rank, std::vector<std::string>& notes,
                                         const std::set<std::string>& leave = {}, int64_t data_rank = 0,
                                         int64_t ranks = 1);

/// torchtitan's position in the state of a Python data loader: its only dictionary with both a document count
/// ("sample_idx") and a "token_buffer". Throws PickleError that describes what it holds instead.
SamplePosition read_sample_position(const PickleValue& state);

}  // namespace titan
