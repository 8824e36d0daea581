// The state of a run for checkpoints: every parameter of the model with its moments and settings, and the run's
// position. All ranks describe the same state, each with its own tensors.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "titan/checkpoint/load.h"
#include "titan/checkpoint/training_state.h"
#include "titan/config/job_config.h"
#include "titan/model/model.h"
#include "titan/model/state_dict_adapter.h"
#include "titan/optimize/spike_guard.h"
#include "titan/plan/plan.h"
#include "titan/stream/chunk_stream.h"

namespace titan {

struct Run;

/// What a run has counted so far, over all its starts; documents and tokens are counted by each process.
struct TotalCounters {
  int64_t skipped_steps = 0;
  DataCounters data;
};
nlohmann::json to_json(const TotalCounters& counters);
/// Counts that are missing are 0.
TotalCounters total_counters_from_json(const nlohmann::json& json);

/// The position of a run before its next step.
struct RunPosition {
  int64_t step = 0;                 // steps done
  int64_t tokens = 0;               // seen
  std::optional<StreamState> data;  // the next sample; nothing: the first one
  // The streams of all data-parallel ranks, if each has its own; `data` is this rank's.
  std::vector<StreamState> rank_data = {};
  // Instead of `data`: position of torchtitan's loader, which the trainer finds in the corpus.
  std::optional<SamplePosition> samples = std::nullopt;
  std::optional<SpikeGuardState> guard = {};  // from a loaded checkpoint
  TotalCounters counters = {};                // of all starts of the run
};

/// Where a run starts.
struct StartingPoint {
  RunPosition position;
  bool has_weights = false;     // loaded, not initialised from the seed of this run
  bool is_trained = false;      // loaded, and not from a seed checkpoint
  bool has_checkpoint = false;  // loaded from the run's own checkpoint
  bool went_back = false;       // its folder may contain later checkpoints
  /// Rank 0: checkpoints of later steps cannot be trusted.
  std::optional<int64_t> last_agreeing = std::nullopt;
};

/// Conversion of the data position to and from its form in checkpoints, for the stream of data-parallel rank `rank` of
/// `ranks`. `split`: each rank has its own stream. Throws Error(bad_data) if it is damaged, Error(bad_config) if it is
/// of another split or number of ranks.
nlohmann::json data_position(const RunPosition& now);
StreamState data_position_from_json(const nlohmann::json& json, bool split, int64_t ranks, int64_t rank);

/// How the config of a run differs from the one that its checkpoint was saved with.
struct ConfigChanges {
  std::string line;                   // every option that differs; empty: none, or the checkpoint has no config
  std::vector<std::string> warnings;  // changed batches, lengths, rates or schedule; no step left to train
};
/// `facts`: of the checkpoint's manifest, null if there are none; `step`: of the checkpoint.
ConfigChanges find_config_changes(const nlohmann::ordered_json& facts, int64_t step, const JobConfig& config,
                                  const MeshPlace& place);

/// Sets the tokenizer and the chat template of `config` to those of the checkpoint's run, if the `facts` of its
/// manifest contain them.
void take_recorded_tokenizer(const nlohmann::ordered_json& facts, JobConfig& config);

/// Conversion of a guard's state to and from JSON; nothing if it is malformed.
nlohmann::json to_json(const SpikeGuardState& state);
std::optional<SpikeGuardState> guard_state_from_json(const nlohmann::json& words);

class StateDict {
 public:
  /// `run`: its model is built, and it outlives the state.
  explicit StateDict(const Run& run);

  /// The parameters of the whole model with their moments; no moments without an optimizer.
  std::vector<SavedParameter> parameters() const;
  /// Everything, to resume a run.
  CheckpointState whole(const RunPosition& now) const;
  /// The weights alone, converted to `type`.
  CheckpointState model(const RunPosition& now, at::ScalarType type) const;

 private:
  nlohmann::ordered_json facts(const RunPosition& now) const;

  const Run& run_;
  std::map<std::string, BoxOfRank> boxes_;                   // by name
  std::map<std::string, const UpdateDescription*> updates_;  // of each parameter, in the plan
  std::map<std::string, size_t> optimizer_index_;            // of this rank's
};

// Options that determine the sequence of batches, saved with a checkpoint's data position: a run that is resumed with
// different values reports them. The corpus itself is compared by its fingerprint (StreamState).

/// Values by key, without those that have no effect on this run's data.
nlohmann::json stream_options(const JobConfig& config);

/// Adds them to the saved data position.
void note_stream_options(nlohmann::json& position, const JobConfig& config);

/// Throws Error(bad_config) with each option that had another value when the position was saved. Ignores positions of
/// versions that did not save them.
void check_stream_options(const nlohmann::json& position, const JobConfig& config);

// Facts about a model that its weights do not contain. They are saved with our checkpoints and compared with the model
// that loads them: two models may have the same names and shapes and compute different things.

/// Member of a manifest's facts: {"flavor": "llama3 8B", "n_heads": "32", …, "request": {"name": "llama3", …}}.
inline constexpr const char* kModelFacts = "model";
/// Member of the facts of imported weights: the path of their tokenizer. A run records it with its config.
inline constexpr const char* kTokenizerFact = "tokenizer";
nlohmann::ordered_json model_facts(const ModelRequest& model);
/// The model that the facts describe, with a vocabulary of 1 if it depends on the tokenizer; nothing if the facts do
/// not contain it.
std::optional<ModelRequest> recorded_model(const std::optional<Manifest>& manifest);

/// Why weights are loaded: to resume the run that saved them; to begin another run, which may differ on purpose; to
/// convert them for another program.
enum class WeightUse { resume, begin, convert };

/// Throws MismatchError with the differences from the checkpoint's facts. Returns one sentence for a warning if a
/// difference may be intended, or if the weights have no facts (older ones, and Python's). Empty when nothing differs.
std::string check_model_facts(const OpenCheckpoint& checkpoint, const ModelRequest& model, WeightUse use);

}  // namespace titan
