// What a run must remember, under torchtitan's names, so that its checkpoints and ours are one: the model, the
// optimizer's moments and settings, the schedule, the data position and the progress. Knows no trainer: the trainer
// describes itself with these structs, and takes what was restored from them.
#pragma once

#include <array>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/checkpoint/read_checkpoint.h"
#include "titan/checkpoint/save.h"

namespace titan {

/// A release of torchtitan that reads its TOML configs; each has its own names and types of what is not the model.
enum class TorchtitanRelease { december_2024, february_2026 };

/// What torch's Adam and AdamW keep for a parameter besides its moments.
struct AdamSettings {
  double lr = 0;          // of the last step
  double initial_lr = 0;  // before the schedule
  double beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
  bool decoupled_decay = true;
  std::optional<bool> fused, foreach;
};

/// A parameter with all that is saved about it. Tensors are this rank's shards, undefined where it holds none. Names,
/// shapes, boxes and `trained` are the same on every rank: each of them plans the whole checkpoint.
struct SavedParameter {
  std::string name;
  std::vector<int64_t> shape;
  BoxOfRank box_of;
  at::Tensor master, first_moment, second_moment;
  AdamSettings settings;
  bool trained = true;  // has moments, wherever they are
};

/// Where the run is.
struct RunProgress {
  int64_t step = 0;                                       // steps done
  int64_t tokens = 0;                                     // seen by all ranks together
  nlohmann::json data_position = nullptr;                 // the data stream's own words; null: there are none
  int64_t data_ranks = 1;                                 // ranks that read different data
  std::optional<int64_t> optimizer_steps = std::nullopt;  // that the moments have seen; nothing: all
  nlohmann::json guard = nullptr;                         // the spike guard's own words; null: there is none
};

/// The states that exclude_from_loading names.
inline constexpr std::array<std::string_view, 5> kStateNames{"model", "optimizer", "lr_scheduler", "dataloader",
                                                             "train_state"};

/// The spike guard's words in a checkpoint of ours.
inline constexpr const char* kGuardKey = "train_state.titan_guard";
/// The key of the data stream's words in a checkpoint of ours.
inline constexpr const char* kPositionKey = "dataloader.titan_stream";
/// The key of torchtitan's loader state of a data-parallel rank.
std::string loader_key(int64_t rank);

/// Whether it holds a run that can go on, and not the model alone.
bool holds_run(const CheckpointIndex& index);
/// Whether it holds what an optimizer remembers.
bool holds_moments(const CheckpointIndex& index);

CheckpointState describe_model(std::span<const SavedParameter> parameters);
/// The model and everything else, as torchtitan's last release with TOML configs demands it.
CheckpointState describe_run(std::span<const SavedParameter> parameters, const RunProgress& progress);
/// The entries `dataloader.*` and `train_state.*`, with all that a strict load by `release` demands. Its loaders begin
/// anew: they cannot express our position, which is under a key of its own.
CheckpointState describe_progress(const RunProgress& progress, TorchtitanRelease release);

/// Each rank has entries of its own in a checkpoint.
inline constexpr int64_t kMostDataRanks = 1'000'000;

/// A run's progress as any program and release saved it.
struct StoredProgress {
  int64_t step = 0;
  std::optional<int64_t> tokens = std::nullopt;  // seen by all ranks together; nothing: not saved
  int64_t data_ranks = 1;                        // data-parallel ranks of the run that saved it
};
/// Throws MismatchError for numbers of a wrong type, DamageError for numbers that cannot be. Requires holds_run().
StoredProgress read_progress(OpenCheckpoint& checkpoint);
/// `number` as a count; throws DamageError when it is none.
int64_t stored_count(const std::string& name, double number);
/// How many data-parallel ranks' loader states there are.
int64_t loader_states(const CheckpointIndex& index);
/// Our data position, a text in a sound checkpoint; null: there is none of ours. Throws PickleError.
PickleRef read_titan_position(OpenCheckpoint& checkpoint);
/// Whether it has torchtitan's lists of losses, and losses in them.
bool holds_past_losses(OpenCheckpoint& checkpoint);

/// A data position as torchtitan's loader keeps it, of one data-parallel rank.
struct SamplePosition {
  int64_t ranks = 1;                 // data-parallel ranks that read different data
  int64_t samples = 0;               // documents of the rank's part that were read in this pass
  std::vector<int32_t> left_tokens;  // of them, packed into no sequence yet
};

struct RestoredRun {
  std::optional<RunProgress> progress;    // nothing where only the model was wanted or there
  bool has_data_position = false;         // progress->data_position is one of ours
  std::optional<SamplePosition> samples;  // torchtitan's position, where the checkpoint has that
  std::vector<std::string> notes;         // what could not be restored, and why: for the log
};

/// Reads the parameters' shards of `rank` in place, and the progress. `leave`: names out of kStateNames. A checkpoint
/// that holds the model alone restores the model alone, and says so. `data_rank`: the data-parallel rank whose position
/// is read where each has its own. `ranks`: how many restore it together; when nothing is left out each of them also
/// reads a part of what none needs, so that the hash of every block is seen. Throws what OpenCheckpoint::load throws.
RestoredRun restore_run(OpenCheckpoint& checkpoint, std::span<const SavedParameter> parameters, int64_t rank,
                        const std::set<std::string>& leave = {}, int64_t data_rank = 0, int64_t ranks = 1);

/// torchtitan's position in the state of a Python data loader: the one dictionary in it that counts documents
/// ("sample_idx") beside a "token_buffer". Throws PickleError saying what it holds instead.
SamplePosition read_sample_position(const PickleValue& state);

}  // namespace titan
