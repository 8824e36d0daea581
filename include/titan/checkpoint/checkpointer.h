// Saving and loading for a run. Saver writes a state dict at once or asynchronously from a snapshot; Checkpointer adds
// retention, the choice of the checkpoint to load and the lines that report it.
#pragma once

#include <c10/core/Stream.h>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "titan/checkpoint/catalogue.h"
#include "titan/checkpoint/load.h"
#include "titan/checkpoint/save.h"
#include "titan/parallel/host_offload.h"

namespace titan {

class StateSnapshot {
 public:
  /// `beside`: copies from a GPU run asynchronously on a separate stream into pinned memory; otherwise `begin` blocks
  /// until they are done.
  explicit StateSnapshot(bool beside);
  ~StateSnapshot();
  StateSnapshot(const StateSnapshot&) = delete;
  StateSnapshot& operator=(const StateSnapshot&) = delete;

  /// Called by the training thread: `read` now returns the tensors of `writes` of `state`, the same tensors in every
  /// save. No thread may still read the previous snapshot.
  void begin(const CheckpointState& state, std::span<const PlannedWrite> writes);
  /// Called by the training thread: after it returns, the tensors may change, by the CPU and by work enqueued on the
  /// device's current stream.
  void detach();
  /// Called by writer threads: the bytes of write `index`, valid until the next `begin`.
  TensorBytes read(size_t index);
  /// Called by writer threads: the snapshot is no longer read.
  void end() { over_ = true; }

  /// Bytes of the buffers allocated so far (they are kept): 0, or those of every tensor that needs one.
  int64_t buffer_bytes() const;
  size_t buffers() const;

 private:
  struct Part;
  void copy_at_once(Part& part);

  bool beside_;
  bool attached_ = false;  // the tensors may not change
  std::atomic<bool> over_ = true;
  std::vector<std::unique_ptr<Part>> parts_;  // by write
  std::shared_ptr<PinnedMemory> pinned_;
  std::optional<c10::Stream> copies_;  // created with the first asynchronous copy
};

// Saves synchronously or asynchronously. Owns the save plan, the snapshot and the writer thread; knows neither
// intervals nor the contents of the state dict.

enum class SaveMode {
  synchronous,          // written when `save` returns
  asynchronous,         // written while training continues, from a StateSnapshot
  asynchronous_pinned,  // like asynchronous; copies from a GPU also overlap with training
};

/// A rank's files are written in parallel; small states use one file.
inline constexpr FileSplit kFilesOfARank{.most = 4, .least_bytes = int64_t{64} << 20};

struct SaverOptions {
  std::filesystem::path root = {};
  std::string run = {};  // see SavePlace
  SaveMode mode = SaveMode::synchronous;
  FileSplit split = kFilesOfARank;
};

class Saver {
 public:
  /// `done` is called when a save ends: by the writer thread in the asynchronous modes, otherwise by `save`.
  Saver(Storage& storage, RankBarrier& barrier, SaverOptions options, std::function<void(const SaveOutcome&)> done);
  /// Waits for the writer thread.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Saves `state` as step `step`, after waiting for the previous save. While names, dtypes and shapes stay the same,
  /// layouts must too: the plan is reused. `now`: this save is synchronous; otherwise the state must not change before
  /// `detach`.
  void save(int64_t step, const CheckpointState& state, bool now = false);
  /// Call before the state of the last `save` changes: see StateSnapshot. Costs nothing if nothing must be copied.
  void detach();
  /// Waits until the last `save` is written or has failed. Storage failures go to `done`; rethrows other exceptions of
  /// the writer thread.
  void finish();

  /// Of the last asynchronous save; undefined before the first.
  const StateSnapshot& snapshot() const { return *snapshot_; }

 private:
  std::shared_ptr<const SavePlan> plan_for(const std::vector<PlacedTensor>& tensors);
  void write(SaveJob job);

  Storage& storage_;
  RankBarrier& barrier_;
  SaverOptions options_;
  std::function<void(const SaveOutcome&)> done_;

  std::vector<LogicalTensor> planned_;  // names, dtypes and shapes of the tensors that plan_ is for
  std::shared_ptr<const SavePlan> plan_;
  std::unique_ptr<StateSnapshot> snapshot_;
  std::thread writer_;
  std::exception_ptr failure_;
};

// The trainer's interface: load at the start, save on request, retention after each commit. Knows no config, no trainer
// and no communicator.

struct CheckpointerOptions {
  SaverOptions saver;  // its root is the folder of all checkpoints; the checkpointer names the run
  Retention retention;
  bool only_loads = false;  // another run may be writing there: unfinished saves are not removed
};

/// Callbacks of a Checkpointer, from its threads, one call at a time.
struct CheckpointEvents {
  std::function<void(const SaveOutcome&)> saved;  // a save was committed or failed: on every rank
  std::function<void(const std::string&)> warn;   // rank 0: an old checkpoint could not be deleted
};

class Checkpointer {
 public:
  /// Collective, like all calls below: every rank makes the same calls.
  Checkpointer(std::unique_ptr<Storage> storage, std::unique_ptr<RankBarrier> barrier, CheckpointerOptions options,
               CheckpointEvents events);
  /// Waits for pending writes and deletions.
  ~Checkpointer();

  /// Call before the first save: loads as load_together does, then removes unfinished saves of earlier runs, unless
  /// this run only loads. If the load fails, nothing is removed.
  LoadOutcome load(std::optional<int64_t> step, const LoadAttempt& attempt,
                   const ExportAttempt& attempt_export = nullptr);
  /// Loads one checkpoint from any folder.
  LoadOutcome load_folder(const std::filesystem::path& folder, const LoadAttempt& attempt) {
    return load_folder_together(*storage_, *barrier_, folder, attempt);
  }

  /// Loads from another format, with this run's storage and ranks.
  LoadOutcome load_by(const std::function<LoadOutcome(Storage&, RankBarrier&)>& load) {
    return load(*storage_, *barrier_);
  }
  /// A save in another format at the end of a run, after all earlier saves: tried twice; each attempt is reported like
  /// any save.
  void save_by(const std::function<SaveOutcome(Storage&, RankBarrier&)>& save);

  /// Checks that all ranks can write to the checkpoint folder: each writes and removes a file. Throws Error(storage) on
  /// all ranks if one has no permission or does not find the folder. If a disk is full or failing, returns a warning
  /// instead: it may recover before the first save.
  std::string rehearse();

  /// See Saver. Old checkpoints are deleted while training continues, before the next save begins. `now`: a failed save
  /// is retried once, because no later save would follow.
  void save(int64_t step, const CheckpointState& state, bool now = false);
  void detach() { saver_->detach(); }
  /// See put_aside_later; for rank 0, before it saves. Throws StorageError.
  std::vector<int64_t> put_aside_later(int64_t step);
  void finish();
  /// Returns when all ranks have called it.
  void barrier() { barrier_->exchange({}); }

  /// Differs from run to run; the same on all ranks.
  const std::string& run() const { return options_.saver.run; }

 private:
  void after_save(const SaveOutcome& outcome);
  void wait_for_deletions();

  std::unique_ptr<Storage> storage_;
  std::unique_ptr<RankBarrier> barrier_;
  CheckpointerOptions options_;
  CheckpointEvents events_;
  bool failed_ = false;  // the last completed save failed; read after it has ended
  std::thread deleting_;
  std::unique_ptr<Saver> saver_;
};

}  // namespace titan
