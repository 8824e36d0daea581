// The state that a save writes beside training, as it was when the save began. A tensor on the CPU is written from
// where it lies for as long as nobody changes it, and only what is not written by then is copied; what is on a GPU is
// copied at once. Where a training step takes longer than a write, nothing on the CPU is ever copied and no buffer
// made.
#pragma once

#include <c10/core/Stream.h>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "titan/checkpoint/save.h"
#include "titan/parallel/host_offload.h"

namespace titan {

class StateSnapshot {
 public:
  /// `beside`: copies from a GPU run beside its other work, into pinned memory; else `begin` returns when they are
  /// made.
  explicit StateSnapshot(bool beside);
  ~StateSnapshot();
  StateSnapshot(const StateSnapshot&) = delete;
  StateSnapshot& operator=(const StateSnapshot&) = delete;

  /// The thread that trains: from now on `read` gives the tensors of these writes of `state`, the same tensors in every
  /// call. Nobody reads what was there before.
  void begin(const CheckpointState& state, std::span<const PlannedWrite> writes);
  /// The thread that trains: once this returns it may change the tensors, and a device's current stream may with what
  /// it is given from then on.
  void detach();
  /// The threads that write: write `index`, for one of them. Lasts until the next `begin`.
  TensorBytes read(size_t index);
  /// The threads that write: nothing will be read any more.
  void end() { over_ = true; }

  /// Of the buffers made so far, which stay: either none, or those of everything that must are in one.
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
  std::optional<c10::Stream> copies_;  // made with the first copy beside other work
};

// Saves at once, or while training goes on. Owns the plan, the snapshot and the thread that writes; knows neither
// intervals nor what is in the state.

enum class SaveMode {
  synchronous,          // written when `save` returns
  asynchronous,         // written beside training, from a StateSnapshot
  asynchronous_pinned,  // and copied from a GPU beside training, too
};

/// A rank's files are written side by side; small states are not worth more than one file.
inline constexpr FileSplit kFilesOfARank{.most = 4, .least_bytes = int64_t{64} << 20};

struct SaverOptions {
  std::filesystem::path root;
  std::string run;  // see SavePlace
  SaveMode mode = SaveMode::synchronous;
  FileSplit split = kFilesOfARank;
};

class Saver {
 public:
  /// `done` hears of every save's end at once: from the writing thread in the asynchronous modes, else from `save`.
  Saver(Storage& storage, RankBarrier& meeting, SaverOptions options, std::function<void(const SaveOutcome&)> done);
  /// Waits for the writing thread.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Saves `state` as step `step`. Waits first until the former save is written. The layouts of a name stay those of
  /// the first save that had it. `now`: synchronous this time; else the state may not change before `detach`.
  void save(int64_t step, const CheckpointState& state, bool now = false);
  /// Before the state of the last `save` changes: see StateSnapshot. Costs nothing when nothing is to be copied.
  void detach();
  /// After this the last `save` is written, or has failed. Throws what the thread could not report.
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

  std::vector<LogicalTensor> planned_;  // what plan_ is for
  std::shared_ptr<const SavePlan> plan_;
  std::unique_ptr<StateSnapshot> snapshot_;
  std::thread writer_;
  std::exception_ptr failure_;
};

}  // namespace titan
