// Loading on all ranks together: the newest checkpoint that is whole, agreed on by everyone.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "titan/base/error.h"
#include "titan/checkpoint/read_checkpoint.h"
#include "titan/checkpoint/save.h"

namespace titan {

struct LoadOutcome {
  std::optional<int64_t> step;  // nothing: there was no checkpoint
  bool verified = false;
  std::filesystem::path folder;
  std::string line;                   // "LOAD: …", the same on all ranks
  std::vector<std::string> warnings;  // rank 0: what could not be set aside
  bool passed_unread = false;         // the medium did not give a newer one; it may recover
};

/// Thrown by a LoadAttempt for a checkpoint that is whole and of no use to this run: an older one is tried.
class UnsuitableError : public Error {
 public:
  explicit UnsuitableError(const std::string& what) : Error(ExitCode::storage, what) {}
};

/// Fills this rank's state from an opened checkpoint. What it has filled when it throws counts for nothing.
using LoadAttempt = std::function<void(OpenCheckpoint&)>;

/// The same from a finished model in Hugging Face's form in a folder; whether every byte of it has the hash it was
/// saved with.
using ExportAttempt = std::function<bool(Storage&, const std::filesystem::path&)>;

/// Tries the checkpoints under `root`, the newest first, or only `step`. A damaged one is set aside once an older one
/// has been loaded, unless `only_reads`: they are another run's then. Nothing there: an outcome without a step. Throws
/// Error(storage), on all ranks alike, when `step` is missing, when none that is there is whole and of use, and when
/// one does not fit this run or may not be read; then nothing on disk has changed. Without `attempt_export` finished
/// models in Hugging Face's form are passed over.
LoadOutcome load_together(Storage& storage, RankBarrier& meeting, const std::filesystem::path& root,
                          std::optional<int64_t> step, const LoadAttempt& attempt, bool only_reads = false,
                          const ExportAttempt& attempt_export = nullptr);

/// The same with one checkpoint that lies anywhere: it is whole and fits, or an Error(storage).
LoadOutcome load_folder_together(Storage& storage, RankBarrier& meeting, const std::filesystem::path& folder,
                                 const LoadAttempt& attempt);

}  // namespace titan
