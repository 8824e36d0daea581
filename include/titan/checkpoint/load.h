// Reading checkpoints: an open checkpoint, resharding (any box from the stored chunks), and the collective load, which
// skips damaged checkpoints.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "titan/base/error.h"
#include "titan/checkpoint/metadata.h"
#include "titan/checkpoint/save.h"

namespace titan {

/// A region of a stored chunk that is read into a region of the target box.
struct PlannedRead {
  BlobPlace place;
  Box in_chunk;   // relative to the chunk
  Box in_target;  // relative to the target box
  std::vector<int64_t> chunk_shape;

  bool operator==(const PlannedRead&) const = default;
};

/// The checkpoint does not fit the run: another model, other names, shapes or dtypes. An older one would not fit
/// either.
class MismatchError : public Error {
 public:
  explicit MismatchError(const std::string& message) : Error(ExitCode::storage, message) {}
};

/// Resharding: the reads that fill `box` of `tensor`, ordered by file and offset. Throws MismatchError if the index has
/// no such tensor or another shape, DamageError if its chunks do not cover the box exactly once. The caller checks the
/// dtype.
std::vector<PlannedRead> plan_load(const CheckpointIndex& index, const LogicalTensor& tensor, const Box& box);

// An open checkpoint: manifest and index are read and verified; tensors and values can be read, and each block's hash
// is checked. Every rank opens its own; not thread-safe.

/// A box of a tensor to load, and the tensor of the box's shape to read it into: any device, any strides.
struct LoadTarget {
  LogicalTensor tensor;
  Box box;
  at::Tensor into;        // [extents of box]
  bool any_type = false;  // convert if the stored dtype differs from `tensor`'s
};

class OpenCheckpoint {
 public:
  /// `all_sizes`: check every file's size now (only on rank 0, so that not every rank opens every file). Throws
  /// DamageError or PickleError if the folder differs from what was committed, Error(storage) for the format of a newer
  /// program, StorageError if the storage fails.
  OpenCheckpoint(Storage& storage, std::filesystem::path folder, bool all_sizes);

  /// True if there is a manifest: every byte read is checked against its hash.
  bool verified() const { return manifest_.has_value(); }
  const std::optional<Manifest>& manifest() const { return manifest_; }
  const CheckpointIndex& index() const { return index_; }
  const std::filesystem::path& folder() const { return folder_; }

  /// Fills all targets; their content is undefined after an exception. Throws MismatchError, before reading anything,
  /// if a name, shape or dtype does not match.
  void load(std::span<const LoadTarget> targets);
  /// Describes the dtype conversion of tensors read so far; empty: none.
  const std::string& conversion() const { return conversion_; }
  /// The value of that name; throws MismatchError if there is none, PickleError for unknown types.
  PickleRef value(const std::string& name);
  /// Reads where the elements of every tensor are, without the elements, and with a manifest every value. Throws what
  /// load() would throw of a target of the stored dtype and shape: DamageError or PickleError.
  void check_entries();
  /// Reads everything not read yet: with a manifest, every byte of every file is then verified.
  void check_all();

 private:
  CheckedReader& file(const std::string& name);
  void read_unverified();
  void check_sizes();
  /// The elements of a chunk of the tensor of that name. Throws DamageError unless they are what the index says.
  StoredElements stored_chunk(const PlannedRead& read, const std::string& name);
  void read(const PlannedRead& read, const LoadTarget& target);

  Storage& storage_;
  std::filesystem::path folder_;
  std::optional<Manifest> manifest_;
  CheckpointIndex index_;
  std::string conversion_;
  std::map<std::string, std::unique_ptr<CheckedReader>> files_;
};

// The load of a run: all ranks agree on the newest complete checkpoint.

struct LoadOutcome {
  std::optional<int64_t> step;  // empty: no checkpoint found
  bool verified = false;
  std::filesystem::path folder;
  std::string line;                   // "LOAD: …", the same on all ranks
  std::vector<std::string> warnings;  // rank 0: damaged checkpoints that could not be renamed
  bool passed_unread = false;         // a newer one could not be read; the storage may recover
};

/// Thrown by a LoadAttempt for a complete checkpoint that this run cannot use: an older one is tried.
class UnsuitableError : public Error {
 public:
  explicit UnsuitableError(const std::string& what) : Error(ExitCode::storage, what) {}
};

/// Fills this rank's state from an opened checkpoint. If it throws, the state is undefined.
using LoadAttempt = std::function<void(OpenCheckpoint&)>;

/// The same from a folder in Hugging Face's format; returns true if every byte matched its hash.
using ExportAttempt = std::function<bool(Storage&, const std::filesystem::path&)>;

/// Which of the checkpoints a load may take; rank 0's counts.
struct LoadLimit {
  std::optional<int64_t> last;  // later steps are passed over; none: no limit
  std::string why;              // after "step 9 is passed over: "
};

/// Tries the checkpoints under `root` that `limit` allows, newest first, or only `step`, whatever the limit. Damaged
/// ones are renamed once an older one is loaded, unless `only_reads` (the folder may belong to another run). No
/// checkpoint: an outcome without a step. Throws Error(storage) on all ranks if `step` is missing, if none is complete
/// and usable, or if one does not match this run or may not be read; then nothing on disk has changed. Without
/// `attempt_export`, exports in Hugging Face's format are skipped.
LoadOutcome load_together(Storage& storage, RankBarrier& barrier, const std::filesystem::path& root,
                          std::optional<int64_t> step, const LoadAttempt& attempt, bool only_reads = false,
                          const ExportAttempt& attempt_export = nullptr, const LoadLimit& limit = {});

/// The same for one checkpoint in any folder; throws Error(storage) if it is damaged or does not match.
LoadOutcome load_folder_together(Storage& storage, RankBarrier& barrier, const std::filesystem::path& folder,
                                 const LoadAttempt& attempt);

}  // namespace titan
