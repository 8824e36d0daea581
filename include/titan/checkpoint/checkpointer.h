// What the trainer holds: loading at the start, saving when it is told to, old checkpoints deleted after each commit.
// It knows no config, no trainer and no process group.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "titan/checkpoint/catalogue.h"
#include "titan/checkpoint/load.h"
#include "titan/checkpoint/saver.h"

namespace titan {

struct CheckpointerOptions {
  std::filesystem::path root;  // the folder of all checkpoints
  SaveMode mode = SaveMode::synchronous;
  Retention retention;
};

/// The end of a save, told to every rank.
struct SaveReport {
  SaveOutcome outcome;
  std::vector<std::string> warnings;  // rank 0: old checkpoints that could not be deleted
};

class Checkpointer {
 public:
  /// All ranks call alike, here and below. `report` hears of a save's end at once, from the writing thread when one
  /// writes.
  Checkpointer(std::unique_ptr<Storage> storage, std::unique_ptr<RankMeeting> meeting, CheckpointerOptions options,
               std::function<void(const SaveReport&)> report);

  /// Before the first save: removes what earlier runs left half done, then loads as load_together does.
  LoadOutcome load(std::optional<int64_t> step, const LoadAttempt& attempt);
  /// One checkpoint that lies anywhere.
  LoadOutcome load_folder(const std::filesystem::path& folder, const LoadAttempt& attempt) {
    return load_folder_together(*storage_, *meeting_, folder, attempt);
  }

  /// See Saver.
  void save(int64_t step, const CheckpointState& state, bool now = false) { saver_->save(step, state, now); }
  void wait_for_staging() { saver_->wait_for_staging(); }
  void finish() { saver_->finish(); }

  /// Differs from run to run; the same on all ranks.
  const std::string& run() const { return run_; }

 private:
  void after_save(const SaveOutcome& outcome);

  std::unique_ptr<Storage> storage_;
  std::unique_ptr<RankMeeting> meeting_;
  CheckpointerOptions options_;
  std::function<void(const SaveReport&)> report_;
  std::string run_;
  std::unique_ptr<Saver> saver_;
};

}  // namespace titan
