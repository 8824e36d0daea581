// What to read from where so that a box of a tensor is filled: a pure function of the index, whatever layout wrote it.
#pragma once

#include <string>
#include <vector>

#include "titan/checkpoint/index.h"

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

}  // namespace titan
