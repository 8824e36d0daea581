// The phases of a save, from the temporary folder to the commit, each for one rank and without a communicator. The
// caller puts a barrier between phases (docs/checkpoints.md has the order).
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
#include "titan/checkpoint/metadata.h"

namespace titan {

/// A value of the state dict, serialised; all values are written at the start of rank 0's first file.
struct SavedValue {
  std::string name;
  std::string blob;  // see value_blob
};

/// The file of a rank's data: "__RANK_FILE.distcp".
std::string data_file(int64_t rank, int64_t file = 0);
/// The location of one save.
struct SavePlace {
  std::filesystem::path root;  // the folder of all checkpoints
  int64_t step = 0;
  std::string run;  // differs from run to run

  /// The folder until the commit.
  std::filesystem::path temporary() const;
  /// The folder after the commit.
  std::filesystem::path final() const;
};

std::string step_folder(int64_t step);
/// 1200 for "step-1200"; nothing for any other name.
std::optional<int64_t> step_of(std::string_view folder);

/// Rank 0, first: checks that `bytes` fit and creates the temporary folder. Throws StorageError(ENOSPC) if not.
void begin_save(Storage& storage, const SavePlace& place, int64_t bytes);

/// The tensor of the `index`-th planned write.
using WrittenTensor = std::function<TensorBytes(size_t index)>;

/// Every rank, next: writes and syncs one of its data files. `writes`: number of planned writes in that file, in order.
/// `values`: rank 0's, at the start of its first file. If there is nothing to write, no file is created.
std::optional<FileRecord> write_data(Storage& storage, const SavePlace& place, int64_t rank,
                                     std::span<const SavedValue> values, size_t writes, const WrittenTensor& tensor,
                                     int64_t file = 0);

/// Writes and syncs the index of a checkpoint in `folder`.
FileRecord write_index_file(Storage& storage, const std::filesystem::path& folder, const CheckpointIndex& index);

/// Rank 0, last: writes index and manifest, renames the folder, reads both back. `files`: the data files of all ranks.
/// The checkpoint is committed when this returns.
void commit_save(Storage& storage, const SavePlace& place, const CheckpointIndex& index,
                 std::map<std::string, FileRecord> files, nlohmann::ordered_json facts);

/// After a failure: removes the temporary folder as far as possible. Does not throw.
void abandon_save(Storage& storage, const SavePlace& place);

}  // namespace titan
