// The run's checkpoints as the trainer sees them: what `checkpoint.*` asks for, said to a Checkpointer. It knows what
// the state of a run is and when it is due; how it is saved and loaded is the checkpoint part's business.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "titan/base/log.h"
#include "titan/checkpoint/checkpointer.h"
#include "titan/checkpoint/training_state.h"
#include "titan/config/job_config.h"
#include "titan/data/chunk_stream.h"
#include "titan/distributed/mesh_groups.h"
#include "titan/optimize/learning_rate.h"
#include "titan/optimize/optimizer.h"
#include "titan/parallel/assembly.h"

namespace titan {

/// Where a run begins: after `step` steps, with the data that come after `data` (nothing: from their beginning).
struct RunStart {
  int64_t step = 0;
  int64_t tokens = 0;
  std::optional<StreamState> data;
};

/// What there is to save; all of it outlives the checkpoints.
struct RunParts {
  const Assembly& assembly;
  const Optimizer& optimizer;
  const std::vector<ParameterGroup>& groups;
  const LearningRateSchedule& schedule;
  const MeshPlace& place;
  Communicator* world;  // null: alone
  at::Device device;
};

class RunCheckpoints {
 public:
  RunCheckpoints(const JobConfig& config, const World& world, RunParts parts, const Log& log);

  /// Loads what `checkpoint.*` names; the weights' copies are declared stale. Says so in one line.
  RunStart load();
  /// Step 0, for checkpoint.create_seed_checkpoint.
  void save_seed();
  /// Saves when it is due after `step` steps. All ranks call alike. The next optimizer step may be enqueued at once:
  /// copies from a GPU go before it on the same stream, others are made when this returns.
  void after_step(int64_t step, int64_t tokens, const StreamState& data, bool is_last);
  /// Waits for the last save.
  void finish() { checkpointer_->finish(); }

 private:
  std::vector<SavedParameter> parameters(int64_t step) const;
  CheckpointState whole_state(const RunProgress& progress) const;
  RunStart restore(OpenCheckpoint& checkpoint, std::vector<std::string>& notes);
  LoadOutcome load_from(const std::filesystem::path& folder, RunStart& start, std::vector<std::string>& notes);
  bool is_due(int64_t step, bool is_last);
  bool clock_says_so();
  void save_last(int64_t step, const RunProgress& progress);
  void report(const SaveReport& report) const;

  const JobConfig& config_;
  RunParts parts_;
  const Log& log_;
  bool leads_;
  int64_t rank_;
  std::filesystem::path root_;
  std::unique_ptr<Checkpointer> checkpointer_;
  std::chrono::steady_clock::time_point last_save_ = std::chrono::steady_clock::now();
};

}  // namespace titan
