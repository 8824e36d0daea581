// Saves at once, or while training goes on. Owns the plan, the snapshot and the thread that writes; knows neither
// intervals nor what is in the state.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "titan/checkpoint/save.h"
#include "titan/checkpoint/state_snapshot.h"

namespace titan {

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
  Saver(Storage& storage, RankMeeting& meeting, SaverOptions options, std::function<void(const SaveOutcome&)> done);
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
  RankMeeting& meeting_;
  SaverOptions options_;
  std::function<void(const SaveOutcome&)> done_;

  std::vector<LogicalTensor> planned_;  // what plan_ is for
  std::shared_ptr<const SavePlan> plan_;
  std::unique_ptr<StateSnapshot> snapshot_;
  std::thread writer_;
  std::exception_ptr failure_;
};

}  // namespace titan
