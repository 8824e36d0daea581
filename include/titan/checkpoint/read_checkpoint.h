// What to read from where so that a box of a tensor is filled: a pure function of the index, whatever layout wrote it.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "titan/checkpoint/index.h"
#include "titan/checkpoint/manifest.h"

namespace titan {

/// A region of a stored chunk that fills a region of the wanted box.
struct PlannedRead {
  BlobPlace place;
  Box in_chunk;   // relative to the chunk
  Box in_target;  // relative to the wanted box
  std::vector<int64_t> chunk_shape;

  bool operator==(const PlannedRead&) const = default;
};

/// The checkpoint does not fit the run: another model, other names, shapes or dtypes. An older one would not fit
/// either.
class MismatchError : public Error {
 public:
  explicit MismatchError(const std::string& message) : Error(ExitCode::storage, message) {}
};

/// The reads that fill `box` of `tensor`, in the order of files and offsets. Throws MismatchError when the index has no
/// such tensor or another shape, DamageError when its chunks do not cover the box exactly once. The dtype is the
/// caller's business.
std::vector<PlannedRead> plan_load(const CheckpointIndex& index, const LogicalTensor& tensor, const Box& box);

// A committed checkpoint, opened: its manifest and index are read and right, and its tensors and values can be read,
// each block checked on the way. Used by one rank at a time; every rank opens its own.

/// A box of a tensor that is wanted, and the tensor of the box's shape to read it into: any device, any strides.
struct LoadTarget {
  LogicalTensor tensor;
  Box box;
  at::Tensor into;
  bool any_type = false;  // what is stored may have another dtype than `tensor`; it is converted
};

class OpenCheckpoint {
 public:
  /// `all_sizes`: look at every file's size now (rank 0 does, so that not every rank opens every file).
  /// Throws DamageError or PickleError when the folder is not what was committed, Error(storage) for a format of a
  /// newer program, StorageError when the medium fails.
  OpenCheckpoint(Storage& storage, std::filesystem::path folder, bool all_sizes);

  /// Whether there is a manifest, so that every byte read is known to be right.
  bool verified() const { return manifest_.has_value(); }
  const std::optional<Manifest>& manifest() const { return manifest_; }
  const CheckpointIndex& index() const { return index_; }
  const std::filesystem::path& folder() const { return folder_; }

  /// Fills all targets; their content is undefined after an exception. Throws MismatchError before anything is read
  /// when a name, a shape or a dtype does not fit.
  void load(std::span<const LoadTarget> targets);
  /// Which tensors were read into another dtype than they have, in words; empty: none.
  const std::string& conversion() const { return conversion_; }
  /// The value of that name; throws MismatchError when there is none, PickleError when it is of types unknown here.
  PickleRef value(const std::string& name);
  /// Reads everything that no call has read yet: with a manifest, every byte of every file is then known to be right.
  void check_all();

 private:
  CheckedReader& file(const std::string& name);
  void read_unverified();
  void check_sizes();
  void read(const PlannedRead& read, const LoadTarget& target);

  Storage& storage_;
  std::filesystem::path folder_;
  std::optional<Manifest> manifest_;
  CheckpointIndex index_;
  std::string conversion_;
  std::map<std::string, std::unique_ptr<CheckedReader>> files_;
};

}  // namespace titan
