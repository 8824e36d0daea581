// The run's checkpoints as the trainer sees them: what `checkpoint.*` asks for, passed to a Checkpointer. Decides when
// a checkpoint is due and which one a run starts from, and reports both.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "titan/base/command_queue.h"
#include "titan/base/log.h"
#include "titan/checkpoint/checkpointer.h"
#include "titan/distributed/world.h"
#include "titan/train/run_state.h"

namespace titan {

/// Whether every start counts its steps from 0 (checkpoint.exclude_from_loading).
bool forgets_progress(const CheckpointSection& options);

/// Fills the run's state from the checkpoint, folder or export that the config names, if there is one, and logs it in
/// one line. The weights' copies are then stale. Throws Error on all ranks (load_together). All ranks call alike.
RunStart load_run(const JobConfig& config, const RunParts& parts, const RunState& state, Checkpointer& checkpointer,
                  const Log& log);
/// The same of what `checkpoint.initial_load_*` name alone, whatever the run's own folder holds.
RunStart load_initial_weights(const JobConfig& config, const RunParts& parts, const RunState& state,
                              Checkpointer& checkpointer, const Log& log);

class RunCheckpoints {
 public:
  /// All ranks call alike, here and below.
  RunCheckpoints(const JobConfig& config, const World& world, RunParts parts, const Log& log);

  /// Loads what `checkpoint.*` names (load_run), then checks that checkpoints can be written.
  RunStart load();
  /// The weights that `checkpoint.initial_load_*` name, to compute with and not to train.
  RunStart load_initial() { return load_initial_weights(config_, parts_, state_, *checkpointer_, log_); }
  /// Step 0, for checkpoint.create_seed_checkpoint. Throws Error(storage).
  void save_seed();
  /// Whether a checkpoint is due by this rank's clock (checkpoint.interval_seconds). The ranks then agree: it is saved
  /// if it is due on any.
  bool clock_asks() const;
  /// Whether after_step() would save.
  bool is_due(int64_t step, bool is_last, bool asked) const;
  /// Saves if it is due, or `asked` for by all ranks. Weights and moments may not change until before_change().
  void after_step(const RunPosition& now, bool is_last, bool asked);
  /// Before each optimizer step is enqueued: copies what is still to be written of what it changes.
  void before_change() { checkpointer_->detach(); }
  /// For a run that ends before its last step: saves `now` unless it is saved. Returns whether it is.
  bool save_before_end(const RunPosition& now);
  /// Waits for the last save, and for the commands that follow saves. Throws Error(storage) if the last save failed,
  /// since no later one follows.
  void finish();
  /// After a signal: gives the commands that follow saves a few seconds; reports which have not ended.
  void stop();
  /// The command that resumes from what is saved, in words: the same one, without options that would always go back.
  std::string next_command() const;
  /// What the next command does, in words.
  std::string next_start() const;

 private:
  /// Renames what was saved of later steps, before the first save of a run that went back to an earlier one.
  void leave_later_steps();
  void save_last(const RunPosition& now);
  void save_hugging_face(const RunPosition& now);
  /// For checkpoint.export_dtype = "float16".
  void warn_of_infinities(const CheckpointState& weights) const;
  void report(const SaveOutcome& outcome);
  /// Waits for the save under way; the next one is the last.
  void begin_ending();
  /// The last checkpoint was not saved. `before`: the reason of the first attempt; empty: this is the first.
  void report_failed_end(const std::string& before) const;
  /// With the data positions of all ranks, which they exchange where each reads a part of the corpus of its own.
  RunPosition with_all_positions(RunPosition now);

  const JobConfig& config_;
  ModelRequest model_;
  const RunParts parts_;
  RunState state_;
  const Log& log_;
  std::filesystem::path root_;
  std::chrono::steady_clock::time_point last_save_ = std::chrono::steady_clock::now();
  int64_t begun_at_ = 0;  // the step at which the same command begins while nothing is saved
  // Of the last save that has ended; written by the thread that saves, read once that is over.
  int64_t saved_step_ = 0;       // a step loaded counts as saved: the same command begins there again
  bool has_checkpoint_ = false;  // of that step, from which the same command would resume
  std::string problem_;
  bool is_ending_ = false;
  std::optional<int64_t> went_back_to_;  // later steps are saved, and in the way
  CommandQueue commands_;
  std::unique_ptr<RankBarrier> data_barrier_;  // null where all ranks read one sequence
  std::unique_ptr<Checkpointer> checkpointer_;
};

}  // namespace titan
