// The files that describe a checkpoint: `.metadata`, the index of tensors, values and their chunks (a pickle of
// torch.distributed.checkpoint's Metadata), and `manifest.json`, the size and hashes of every file.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "titan/checkpoint/blob.h"
#include "titan/checkpoint/storage.h"
#include "titan/plan/tensor_layout.h"

namespace titan {

/// All of a tensor of this shape.
Box whole_box(const std::vector<int64_t>& shape);

/// A tensor's name, dtype and global shape, without a layout.
struct LogicalTensor {
  std::string name;
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> shape;

  int64_t bytes_of(const Box& box) const;
  /// Of the whole tensor.
  int64_t bytes() const;
  bool operator==(const LogicalTensor&) const = default;
};

/// The byte range of one blob in a file.
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
  bool has_manifest = true;  // written by this program with a manifest; false for Python's

  /// Bytes that each file must have at least.
  std::map<std::string, int64_t> file_ends() const;
  bool operator==(const CheckpointIndex&) const = default;
};

inline constexpr const char* kIndexFile = ".metadata";

/// Passes the bytes of the file on in pieces: it may be large, with an entry for each shard of each tensor.
void write_index(const CheckpointIndex& index, const PickleStream::Sink& sink);
std::string write_index(const CheckpointIndex& index);
/// Throws DamageError or PickleError unless the file may begin with these bytes, of which kKindBytes are enough: asked
/// before the rest is read, which may be large.
void check_index_begin(std::string_view head);
/// Throws DamageError or PickleError if it is malformed, a chunk is outside its tensor or has no byte range, or a file
/// name points outside the folder.
CheckpointIndex read_index(std::string_view bytes);

// The manifest lists every file with its size and hashes. It is written last: a folder with a manifest was complete.

inline constexpr const char* kManifestFile = "manifest.json";

struct Manifest {
  int64_t step = 0;
  std::string run;               // the run that wrote it
  nlohmann::ordered_json facts;  // recorded by the trainer: tokens, layout, …
  std::map<std::string, FileRecord> files;
};

/// JSON whose last member is the hash of everything before it.
std::string write_manifest(const Manifest& manifest);
/// Throws DamageError if the hash differs, Error(storage) for a newer format.
Manifest read_manifest(std::string_view bytes);

}  // namespace titan
