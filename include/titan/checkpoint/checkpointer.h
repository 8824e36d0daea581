// The checkpoints of a run: saves, at once or while training continues, retention after each commit, and the load at
// the start. Owns the save plan, the snapshot and the threads that write and delete. Knows no config, no trainer, no
// interval and no contents of the state dict.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "titan/checkpoint/catalogue.h"
#include "titan/checkpoint/load.h"
#include "titan/checkpoint/save.h"

namespace titan {

class StateSnapshot;

enum class SaveMode {
  synchronous,          // written when `save` returns
  asynchronous,         // written while training continues, from a StateSnapshot
  asynchronous_pinned,  // like asynchronous; copies from a GPU also overlap with training
};

struct CheckpointerOptions {
  std::filesystem::path root;  // the folder of all checkpoints
  std::string run;             // see draw_run_name
  SaveMode mode = SaveMode::synchronous;
  Retention retention = {};
  bool only_loads = false;  // another run may be writing there: unfinished saves are not removed
  // A rank's files are written in parallel; small states use one file.
  int64_t most_files = 4;  // of a rank
  int64_t least_file_bytes = int64_t{64} << 20;
  // Called by the Checkpointer's threads, one call at a time.
  std::function<void(const SaveOutcome&)> saved;      // a save was committed or failed: on every rank
  std::function<void(const std::string&)> warn = {};  // rank 0: an old checkpoint could not be deleted
};

/// A short name, drawn by rank 0: it differs from run to run and is the same on all ranks. Collective.
std::string draw_run_name(RankBarrier& barrier);

class Checkpointer {
 public:
  /// `storage` and `barrier` must outlive it.
  Checkpointer(Storage& storage, RankBarrier& barrier, CheckpointerOptions options);
  /// Waits for pending writes and deletions.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  /// Checks that passed after `step` was saved: the newest checkpoint up to it is kept, for a run that goes back to it.
  void trust(int64_t step) { trusted_ = step; }

  // Collective, like all calls below: every rank makes the same calls.

  /// Call before the first save: loads as load_together does, then removes unfinished saves of earlier runs, unless
  /// this run only loads. If the load fails, nothing is removed.
  LoadOutcome load(std::optional<int64_t> step, const LoadAttempt& attempt,
                   const ExportAttempt& attempt_export = nullptr, const LoadLimit& limit = {});

  /// Checks that all ranks can write to the checkpoint folder: each writes and removes a file. Throws Error(storage) on
  /// all ranks if one has no permission or does not find the folder. If a disk is full or failing, returns a warning
  /// instead: it may recover before the first save.
  std::string rehearse();

  /// Saves `state` as step `step`, after waiting for the previous save and its deletions. While names, dtypes and
  /// shapes stay the same, layouts must too: the plan is reused. `now`: this save is synchronous and is retried once if
  /// it fails, because no later save would follow; otherwise the state must not change before `detach`.
  void save(int64_t step, const CheckpointState& state, bool now = false);
  /// A save in another format at the end of a run, after all earlier saves: tried at most twice; each try is reported
  /// like any save.
  void save_by(const std::function<SaveOutcome()>& save);
  /// Call before the state of the last `save` changes: see StateSnapshot. Costs nothing if nothing must be copied.
  void detach();
  /// Waits until the last `save` is written or has failed, and for deletions. Storage failures go to `saved`; rethrows
  /// other exceptions of the writer thread.
  void finish();

  Storage& storage() const { return storage_; }
  RankBarrier& barrier() const { return barrier_; }
  const std::string& run() const { return options_.run; }

 private:
  void start_save(int64_t step, const CheckpointState& state, bool now);
  void plan_for(const std::vector<StateTensor>& tensors);
  /// Runs in the writer thread.
  void write(const SavePlace& place, const CheckpointState& state);
  void after_save(const SaveOutcome& outcome);
  void join_writer();

  Storage& storage_;
  RankBarrier& barrier_;
  const CheckpointerOptions options_;

  std::vector<LogicalTensor> planned_;  // names, dtypes and shapes of the tensors that plan_ is for
  SavePlan plan_;
  std::unique_ptr<StateSnapshot> snapshot_;
  std::thread writer_;
  std::exception_ptr failure_;  // of the writer; read after it has been joined
  bool failed_ = false;         // the last save failed; likewise
  std::thread deleting_;
  std::atomic<int64_t> trusted_ = -1;  // see trust(); −1: nothing was said
};

}  // namespace titan
