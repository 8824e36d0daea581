// The run's checkpoints as the trainer sees them: what `checkpoint.*` asks for, said to a Checkpointer. It knows when a
// checkpoint is due and which one a run begins with; how they are written and read is the checkpoint part's business.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "titan/base/command_queue.h"
#include "titan/base/log.h"
#include "titan/checkpoint/checkpointer.h"
#include "titan/distributed/world.h"
#include "titan/train/run_state.h"

namespace titan {

class RunCheckpoints {
 public:
  /// All ranks call alike, here and below.
  RunCheckpoints(const JobConfig& config, const World& world, RunParts parts, const Log& log);

  struct Start {
    RunPosition position;
    bool is_trained = false;  // the weights were loaded, and not from a seed
  };
  /// Loads what `checkpoint.*` names, and says so in one line; the weights' copies are declared stale. Then sees
  /// whether checkpoints can be written.
  Start load();
  /// Step 0, for checkpoint.create_seed_checkpoint. Throws Error(storage).
  void save_seed();
  /// Whether this rank's clock says that a checkpoint is due (checkpoint.interval_seconds). The first one of any rank
  /// decides for all, which is for the caller to bring about.
  bool clock_asks() const;
  /// Whether after_step() would save.
  bool is_due(int64_t step, bool is_last, bool asked) const;
  /// Saves when it is due, or `asked` for by all ranks. Weights and moments may not change until before_change().
  void after_step(const RunPosition& now, bool is_last, bool asked);
  /// Before each optimizer step is enqueued: keeps what is still to be written of what it changes.
  void before_change() { checkpointer_->detach(); }
  /// Before a run ends that is not over: whether everything up to `now` is saved, now if not before.
  bool save_before_end(const RunPosition& now);
  /// Waits for the last save, and for the commands that follow saves. Throws Error(storage) when the last save failed:
  /// there will be no later one.
  void finish();
  /// After a signal: the commands that follow saves have a few seconds to end; says which have not.
  void stop();
  /// The command that resumes from what is saved, in words: the same one, without what takes a run back every time.
  std::string next_command() const;
  /// What comes of giving the command again, in words.
  std::string next_start() const;

 private:
  using Notes = std::vector<std::string>;

  RunPosition restore(OpenCheckpoint& checkpoint, Notes& notes, WeightUse use);
  /// The end of a run that has left its model alone in `folder`, in a form that `read` reads, with the step's number.
  RunPosition finished(const std::filesystem::path& folder, std::string_view form,
                       const std::function<void(int64_t)>& read, Notes& notes) const;
  RunPosition finished_run(OpenCheckpoint& checkpoint, Notes& notes) const;
  /// The same of a run that ended in Hugging Face's form; whether its bytes are known to be right.
  bool finished_export(Storage& storage, const std::filesystem::path& folder, RunPosition& start, Notes& notes) const;
  void check_facts(const OpenCheckpoint& checkpoint, WeightUse use, Notes& notes) const;
  LoadOutcome load_newest(RunPosition& start, Notes& notes);
  LoadOutcome load_initial(RunPosition& start, Notes& notes);
  LoadOutcome load_hugging_face(Notes& notes);
  /// Before the first save of a run that the config took back to an earlier step.
  void leave_later_steps();
  void save_last(const RunPosition& now);
  void save_hugging_face(const RunPosition& now);
  /// About checkpoint.export_dtype = "float16".
  void warn_of_infinities(const CheckpointState& weights) const;
  void report(const SaveOutcome& outcome);
  /// Nothing is being written any more, and what is saved from now on is saved last.
  void begin_ending();
  /// Of the last checkpoint, which was not saved; `before`: why it was not at the attempt before, empty: the first one.
  void tell_end_attempt(const std::string& before) const;
  /// Where every data-parallel rank reads its own part: with the positions of all of them, which the ranks exchange.
  RunPosition with_all_positions(RunPosition now);

  const JobConfig& config_;
  ModelRequest model_;
  const Assembly& assembly_;
  RunState state_;
  const Log& log_;
  const MeshPlace& place_;
  bool leads_;
  int64_t rank_;
  std::filesystem::path root_;
  std::chrono::steady_clock::time_point last_save_ = std::chrono::steady_clock::now();
  int64_t begun_at_ = 0;  // the step that the same command begins with while nothing is saved
  // Of the last save that has ended; written by the thread that saves, read once that is over.
  int64_t saved_step_ = 0;       // what came before the run counts as saved: the same command begins there again
  bool has_checkpoint_ = false;  // of that step, that the same command would resume from
  std::string problem_;
  bool is_ending_ = false;
  std::string changed_options_;          // since the checkpoint that was loaded
  std::optional<int64_t> went_back_to_;  // what was saved of later steps is in the way
  CommandQueue commands_;
  std::unique_ptr<RankBarrier> data_barrier_;  // null where all ranks read one sequence
  std::unique_ptr<Checkpointer> checkpointer_;
};

}  // namespace titan
