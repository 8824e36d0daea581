// Saves at once, or while training goes on. Owns the plan, the staging buffers and the thread that writes; knows
// neither intervals nor what is in the state.
#pragma once

#include <c10/core/Event.h>

#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "titan/checkpoint/save.h"
#include "titan/parallel/pinned_memory.h"

namespace titan {

enum class SaveMode {
  synchronous,          // written when `save` returns
  asynchronous,         // copied when `save` returns
  asynchronous_pinned,  // from a GPU the copy, too, runs beside training, until `wait_for_staging`
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
  /// the first save that had it. `now`: synchronous this time.
  void save(int64_t step, const CheckpointState& state, bool now = false);
  /// After this the tensors of the last `save` may change.
  void wait_for_staging();
  /// After this the last `save` is written, or has failed. Throws what the thread could not report.
  void finish();

  /// Bytes of the buffers that copies wait in.
  int64_t staging_bytes() const;
  size_t staging_buffers() const { return staged_.size(); }

 private:
  std::shared_ptr<const SavePlan> plan_for(const std::vector<PlacedTensor>& tensors);
  void stage(const SavePlan& plan, const CheckpointState& state);
  void write(SaveJob job);

  Storage& storage_;
  RankMeeting& meeting_;
  SaverOptions options_;
  std::function<void(const SaveOutcome&)> done_;

  std::vector<LogicalTensor> planned_;  // what plan_ is for
  std::shared_ptr<const SavePlan> plan_;
  std::vector<at::Tensor> staged_;
  std::shared_ptr<PinnedMemory> pinned_;  // theirs, where they are filled beside training
  std::optional<c10::Event> copied_;
  std::thread writer_;
  std::exception_ptr failure_;
};

/// The part of a rank's `local` box that `write` is: all of it, contiguous, on the CPU.
at::Tensor written_part(const StateTensor& tensor, const PlannedWrite& write);

}  // namespace titan
