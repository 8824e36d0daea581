// What the trainer holds: loading at the start, saving when it is told to, old checkpoints deleted after each commit.
// It knows no config, no trainer and no process group.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "titan/checkpoint/catalogue.h"
#include "titan/checkpoint/load.h"
#include "titan/checkpoint/saver.h"

namespace titan {

struct CheckpointerOptions {
  std::filesystem::path root;  // the folder of all checkpoints
  SaveMode mode = SaveMode::synchronous;
  Retention retention;
  bool only_loads = false;  // another run may be writing there: nothing of what looks unfinished is removed
};

/// What a Checkpointer tells; from threads of its own, one call at a time.
struct CheckpointEvents {
  std::function<void(const SaveOutcome&)> saved;  // a save has ended, well or not: on every rank, at once
  std::function<void(const std::string&)> warn;   // rank 0: an old checkpoint could not be deleted
};

class Checkpointer {
 public:
  /// All ranks call alike, here and below.
  Checkpointer(std::unique_ptr<Storage> storage, std::unique_ptr<RankBarrier> meeting, CheckpointerOptions options,
               CheckpointEvents events);
  /// Waits for what is being written and deleted.
  ~Checkpointer();

  /// Before the first save: removes what earlier runs left half done, unless this one only loads; then loads as
  /// load_together does.
  LoadOutcome load(std::optional<int64_t> step, const LoadAttempt& attempt,
                   const ExportAttempt& attempt_export = nullptr);
  /// One checkpoint that lies anywhere.
  LoadOutcome load_folder(const std::filesystem::path& folder, const LoadAttempt& attempt) {
    return load_folder_together(*storage_, *barrier_, folder, attempt);
  }

  /// A load of another form, with this run's storage and ranks.
  LoadOutcome load_by(const std::function<LoadOutcome(Storage&, RankBarrier&)>& load) {
    return load(*storage_, *barrier_);
  }
  /// A save of another form, after all that went before and before the run ends: tried twice, and the end of each is
  /// told as that of any other.
  void save_by(const std::function<SaveOutcome(Storage&, RankBarrier&)>& save);

  /// Whether all ranks can write where checkpoints go: each writes a file there and it is removed again. Throws
  /// Error(storage), on all ranks alike, when one may not, or does not find the folder; a medium that is full or fails
  /// may recover until the first save, and is a sentence to warn with.
  std::string rehearse();

  /// See Saver. Old checkpoints are deleted beside training, before the next save begins. `now`: there is no later
  /// interval at which a failure would be mended, so it is tried twice.
  void save(int64_t step, const CheckpointState& state, bool now = false);
  void detach() { saver_->detach(); }
  /// See put_aside_later; for rank 0, before it saves. Throws StorageError.
  std::vector<int64_t> put_aside_later(int64_t step);
  void finish();
  /// Returns when all ranks have come here.
  void meet() { barrier_->exchange({}); }

  /// Differs from run to run; the same on all ranks.
  const std::string& run() const { return run_; }

 private:
  void after_save(const SaveOutcome& outcome);
  void wait_for_deletions();

  std::unique_ptr<Storage> storage_;
  std::unique_ptr<RankBarrier> barrier_;
  CheckpointerOptions options_;
  CheckpointEvents events_;
  std::string run_;
  bool failed_ = false;  // the save that ended last; read once it has
  std::thread deleting_;
  std::unique_ptr<Saver> saver_;
};

}  // namespace titan
