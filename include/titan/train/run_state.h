// What a run must remember, said to checkpoints: every parameter of the model with its moments and settings, and how
// far the run has come. All ranks describe the same state, each with the tensors that it has.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "titan/checkpoint/load.h"
#include "titan/checkpoint/training_state.h"
#include "titan/config/job_config.h"
#include "titan/data/chunk_stream.h"
#include "titan/model/model.h"
#include "titan/model/state_dict_adapter.h"
#include "titan/optimize/learning_rate.h"
#include "titan/optimize/optimizer.h"
#include "titan/optimize/spike_guard.h"
#include "titan/parallel/assembly.h"
#include "titan/parallel/plan.h"

namespace titan {

/// How far a run has come: what happened before its next step.
struct RunPosition {
  int64_t step = 0;                 // steps done
  int64_t tokens = 0;               // seen
  int64_t optimizer_steps = 0;      // that the moments have seen
  std::optional<StreamState> data;  // the next sample; nothing: the first one
  // Where each data-parallel rank has a stream of its own, all of them; `data` is this rank's.
  std::vector<StreamState> rank_data = {};
  // Instead of `data`: where torchtitan's loader was, for the trainer to find in the corpus.
  std::optional<SamplePosition> samples = std::nullopt;
  std::optional<SpikeGuardState> guard = {};  // of a checkpoint that was loaded
};

/// Where a run starts.
struct RunStart {
  RunPosition position;
  bool has_weights = false;     // loaded, instead of drawn from the seed of this run
  bool is_trained = false;      // and not those of a seed checkpoint
  bool has_checkpoint = false;  // the run has this one of its own
  bool went_back = false;       // later ones may be in its folder
};

/// What there is to save; all of it outlives the state.
struct RunParts {
  const ModelDescription& model;
  const Assembly& assembly;
  const std::vector<Parameter*>& parameters;  // of the whole model, in canonical order; other stages' without memory
  const std::vector<ParameterGroup>& groups;  // of these
  const Optimizer* optimizer;                 // of the assembly's; null: there is none, nor are there moments
  const LearningRateSchedule& schedule;
  const MeshPlace& place;
  const SpikeGuard* guard = nullptr;  // null: there is none
};

/// The data position as checkpoints hold it, and back: the stream of data-parallel rank `rank` of `ranks`. `split`:
/// whether each of them has its own. Throws Error(bad_data): a damaged position; Error(bad_config): one of another
/// split, or of another number of ranks.
nlohmann::json data_position(const RunPosition& now);
StreamState data_position_from_json(const nlohmann::json& json, bool split, int64_t ranks, int64_t rank);

/// How the config of a run differs from the one that its checkpoint was saved with.
struct ConfigChanges {
  std::string line;                   // every option that differs; empty: none does, or the checkpoint holds no config
  std::vector<std::string> warnings;  // other batches, lengths, rates or schedule; no step left to train
};
/// `facts`: of the checkpoint's manifest, null where there are none; `step`: the one it holds.
ConfigChanges find_config_changes(const nlohmann::ordered_json& facts, int64_t step, const JobConfig& config,
                                  const MeshPlace& place);

/// Has `config` name the tokenizer and the chat template of the run of a checkpoint, where the `facts` of its manifest
/// say which.
void take_recorded_tokenizer(const nlohmann::ordered_json& facts, JobConfig& config);

/// The words of a guard's state in a checkpoint, and back; nothing when they make no sense.
nlohmann::json to_json(const SpikeGuardState& state);
std::optional<SpikeGuardState> guard_state_from_json(const nlohmann::json& words);

class RunState {
 public:
  RunState(const JobConfig& config, RunParts parts);

  /// As they are after `step` steps.
  std::vector<SavedParameter> parameters(int64_t step) const;
  /// Everything, to resume a run.
  CheckpointState whole(const RunPosition& now) const;
  /// The weights alone, in `type`.
  CheckpointState model(const RunPosition& now, at::ScalarType type) const;

 private:
  AdamSettings settings_of(const ParameterGroup& group, int64_t step) const;
  nlohmann::ordered_json facts(const RunPosition& now) const;

  const JobConfig& config_;
  RunParts parts_;
  std::map<std::string, BoxOfRank> boxes_;         // by name
  std::map<std::string, size_t> optimizer_index_;  // of this rank's
};

// The options that decide which batches follow each other, kept with a checkpoint's data position: a run that is
// resumed with others reports which of them changed. The corpus itself is compared by its fingerprint (StreamState).

/// Their values, by their keys; those that have no effect on this run's data are left out.
nlohmann::json stream_options(const JobConfig& config);

/// Adds them to a data position as checkpoints hold it.
void note_stream_options(nlohmann::json& position, const JobConfig& config);

/// Throws Error(bad_config) with each option that was another when the position was saved. Positions of versions that
/// did not note them pass.
void check_stream_options(const nlohmann::json& position, const JobConfig& config);

// What weights do not show of their model, remembered with them in checkpoints of ours and held against the model that
// loads them: two models may have the same names and shapes and compute different things.

/// Member of a manifest's facts: {"flavor": "llama3 8B", "n_heads": "32", …, "request": {"name": "llama3", …}}.
inline constexpr const char* kModelFacts = "model";
/// Member of the facts of imported weights: the path of their tokenizer. A run records it with its config.
inline constexpr const char* kTokenizerFact = "tokenizer";
nlohmann::ordered_json model_facts(const ModelRequest& model);
/// The model that such facts were made of, with a vocabulary of one word where that follows the tokenizer; nothing when
/// they do not say it.
std::optional<ModelRequest> recorded_model(const std::optional<Manifest>& manifest);

/// What the weights are loaded for: to resume the run that saved them; or to start another run, which may mean
/// to change what is changed on purpose; another program.
enum class WeightUse { resume, begin, convert };

/// Throws MismatchError with what differs, of what the checkpoint remembers; what may be meant is one sentence for a
/// warning instead, and so is what to know of weights that remember nothing: older and Python's ones. Empty when
/// nothing differs.
std::string check_model_facts(const OpenCheckpoint& checkpoint, const ModelRequest& model, WeightUse use);

}  // namespace titan
