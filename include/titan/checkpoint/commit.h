// How a save becomes a checkpoint: the stages of one rank each, which know no process group. Between two stages all
// ranks have finished the former; who sees to that is the caller's business (docs/checkpoints.md has the order).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "titan/checkpoint/blob.h"
#include "titan/checkpoint/manifest.h"
#include "titan/checkpoint/save_plan.h"

namespace titan {

/// Where one save goes.
struct SavePlace {
  std::filesystem::path root;  // the folder of all checkpoints
  int64_t step = 0;
  std::string run;  // differs from run to run

  /// Where it is written,
  std::filesystem::path temporary() const;
  /// and where it lies once committed.
  std::filesystem::path final() const;
};

std::string step_folder(int64_t step);
/// 1200 for "step-1200"; nothing for any other name.
std::optional<int64_t> step_of(std::string_view folder);

/// Rank 0, first: checks that `bytes` fit and makes the temporary folder. Throws StorageError(ENOSPC) when they do not.
void begin_save(Storage& storage, const SavePlace& place, int64_t bytes);

/// The tensor of the `index`-th planned write.
using WrittenTensor = std::function<TensorBytes(size_t index)>;

/// Every rank, next: one of its data files, synced. `writes`: how many the plan gives that file, in that order;
/// `values`: rank 0's, first in its first file. Nothing to write makes no file.
std::optional<FileRecord> write_data(Storage& storage, const SavePlace& place, int64_t rank,
                                     std::span<const SavedValue> values, size_t writes, const WrittenTensor& tensor,
                                     int64_t file = 0);

/// Rank 0, last: index and manifest, rename, read back. `files`: the data files of all ranks. It is committed when this
/// returns.
void commit_save(Storage& storage, const SavePlace& place, const CheckpointIndex& index,
                 std::map<std::string, FileRecord> files, nlohmann::ordered_json facts);

/// After a failure: removes what can be removed, and says nothing.
void abandon_save(Storage& storage, const SavePlace& place);

}  // namespace titan
