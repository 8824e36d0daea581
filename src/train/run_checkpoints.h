// The trainer's view of checkpoints: passes what `checkpoint.*` requests to a Checkpointer. Decides when a checkpoint
// is due and which one a run starts from, and reports both.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "titan/base/command_queue.h"
#include "titan/base/log.h"
#include "titan/checkpoint/checkpointer.h"
#include "titan/distributed/world.h"
#include "titan/train/state_dict.h"

namespace titan {

/// Whether every start counts its steps from 0 (checkpoint.exclude_from_loading).
bool forgets_progress(const CheckpointSection& options);

/// Loads the checkpoint, folder or export that the config names, if there is one, into the run's state, and logs it in
/// one line. Copies of the weights are stale afterwards. Throws Error on all ranks (load_together). Collective.
StartingPoint load_run(const Run& run, const StateDict& state, Checkpointer& checkpointer);
/// The same for `checkpoint.initial_load_*` only, ignoring the run's own folder.
StartingPoint load_initial_weights(const Run& run, const StateDict& state, Checkpointer& checkpointer);

class RunCheckpoints {
 public:
  /// `run`: its model is built, and it outlives this object. Collective, as are the functions below.
  explicit RunCheckpoints(const Run& run);

  /// Loads what `checkpoint.*` names (load_run), then checks that checkpoints can be written.
  StartingPoint load();
  /// Loads the weights that `checkpoint.initial_load_*` name, for inference.
  StartingPoint load_initial() { return load_initial_weights(run_, state_, *checkpointer_); }
  /// Saves step 0, for checkpoint.create_seed_checkpoint. Throws Error(storage).
  void save_seed();
  /// Whether a checkpoint is due by this rank's clock (checkpoint.interval_seconds). It is saved if it is due on any
  /// rank.
  bool clock_asks() const;
  /// Whether after_step() would save.
  bool is_due(int64_t step, bool is_last, bool asked) const;
  /// Saves if it is due, or `asked` for by all ranks. Weights and moments must not change until before_change().
  void after_step(const RunPosition& now, bool is_last, bool asked);
  /// Before each optimizer step is enqueued: copies the tensors that it changes and that are not written yet.
  void before_change() { checkpointer_->detach(); }
  /// A replay agreed on the state of `step`: retention keeps a checkpoint to go back to if a later one does not.
  void trust(int64_t step) { checkpointer_->trust(step); }
  /// For a run that ends before its last step: saves `now` if it is not saved yet. Returns whether it is saved.
  bool save_before_end(const RunPosition& now);
  /// Waits for the last save and for the commands that follow saves. Throws Error(storage) if the last save failed,
  /// since no other follows.
  void finish();
  /// After a signal: gives the commands that follow saves a few seconds; reports those that have not ended.
  void stop();
  /// The command that resumes from the saved state: this run's command without options that always select an earlier
  /// step.
  std::string next_command() const;
  /// A description of what the next command does.
  std::string next_start() const;

 private:
  /// Renames checkpoints of later steps, before the first save of a run that went back to an earlier step, and what an
  /// earlier attempt recorded about them.
  void leave_later_steps();
  void save_last(const RunPosition& now);
  void save_hugging_face(const RunPosition& now);
  /// Warns if an export in float16 (checkpoint.export_dtype) turns weights into infinities.
  void warn_of_infinities(const CheckpointState& weights) const;
  void report(const SaveOutcome& outcome);
  /// Waits for the save in progress; the next one is the last.
  void begin_ending();
  /// The last checkpoint was not saved. `before`: error of the first try; empty: this is the first.
  void report_failed_end(const std::string& before) const;
  /// `now` with the data positions of all ranks, gathered if each rank reads its own part of the corpus.
  RunPosition with_all_positions(RunPosition now);

  const Run& run_;
  const JobConfig& config_;
  const Log& log_;
  ModelRequest model_;
  StateDict state_;
  std::filesystem::path root_;
  std::chrono::steady_clock::time_point last_save_ = std::chrono::steady_clock::now();
  int64_t begun_at_ = 0;  // the step at which the same command starts if nothing is saved
  // Of the last completed save; written by the saving thread, read after it has finished.
  int64_t saved_step_ = 0;       // a loaded step counts as saved: the same command starts there again
  bool has_checkpoint_ = false;  // of that step; the same command would resume from it
  std::string problem_;
  bool is_ending_ = false;
  std::optional<int64_t> went_back_to_;  // checkpoints of later steps exist and must be renamed
  CommandQueue commands_;
  std::unique_ptr<RankBarrier> data_barrier_;  // null where all ranks read one stream
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<RankBarrier> barrier_;
  std::unique_ptr<Checkpointer> checkpointer_;
};

}  // namespace titan
