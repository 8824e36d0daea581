// The index of a checkpoint: which tensors and values it holds, cut into which chunks, lying where in which file. On
// disk it is `.metadata`, a pickle of torch.distributed.checkpoint's Metadata.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "titan/checkpoint/blob.h"
#include "titan/distributed/tensor_layout.h"

namespace titan {

/// A tensor whatever its layout.
struct LogicalTensor {
  std::string name;
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> shape;

  int64_t bytes_of(const Box& box) const;
  bool operator==(const LogicalTensor&) const = default;
};

/// A stretch of a file that holds one blob.
struct BlobPlace {
  std::string file;  // relative to the checkpoint's folder
  int64_t offset = 0;
  int64_t length = 0;

  bool operator==(const BlobPlace&) const = default;
};

struct StoredChunk {
  Box box;
  BlobPlace place;

  bool operator==(const StoredChunk&) const = default;
};

struct StoredTensor {
  LogicalTensor tensor;
  std::vector<StoredChunk> chunks;

  bool operator==(const StoredTensor&) const = default;
};

struct CheckpointIndex {
  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, BlobPlace> values;
  bool has_manifest = true;  // a manifest belongs to it: it was not Python that wrote it

  /// Bytes that each file must have at least.
  std::map<std::string, int64_t> file_ends() const;
  bool operator==(const CheckpointIndex&) const = default;
};

inline constexpr const char* kIndexFile = ".metadata";

std::string write_index(const CheckpointIndex& index);
/// Throws DamageError or PickleError: malformed, a chunk outside of its tensor or without a place, a file name that
/// leads out of the folder.
CheckpointIndex read_index(std::string_view bytes);

}  // namespace titan
