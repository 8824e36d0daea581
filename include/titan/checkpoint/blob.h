// One tensor or value as `torch.save` writes it: an uncompressed zip of a pickle and, for a tensor, its bytes. Data
// files of checkpoints are sequences of such blobs. Sizes depend on dtype and shape alone, so every rank can compute
// the offset of every blob in every file.
#pragma once

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "titan/checkpoint/pickle.h"
#include "titan/checkpoint/storage.h"
#include "titan/plan/tensor_layout.h"

namespace titan {

/// Python's name of a dtype ("bfloat16"); throws InvariantError for a dtype that checkpoints cannot hold.
std::string_view python_name(at::ScalarType type);
/// The dtype of that name; throws DamageError if there is none.
at::ScalarType type_named(std::string_view python_name);

/// A tensor to write: dtype, shape, and the bytes of its elements in order.
class TensorBytes {
 public:
  /// Returns 1 to `most` bytes starting at byte `offset`, valid until the next call.
  using Read = std::function<std::string_view(size_t offset, size_t most)>;

  /// `tensor`: of any shape, contiguous, on the CPU, and unchanged until it is written.
  TensorBytes(const at::Tensor& tensor);  // NOLINT(google-explicit-constructor): most written values are tensors
  TensorBytes(at::ScalarType type, std::vector<int64_t> shape, Read read);

  at::ScalarType type() const { return type_; }
  std::span<const int64_t> shape() const { return shape_; }
  size_t size() const;
  std::string_view read(size_t offset, size_t most) const { return read_(offset, most); }

 private:
  at::ScalarType type_;
  std::vector<int64_t> shape_;
  Read read_;
};

int64_t tensor_blob_bytes(at::ScalarType type, std::span<const int64_t> shape);
void write_tensor_blob(HashingWriter& file, const TensorBytes& tensor);
std::string value_blob(const PickleRef& value);

/// Where a tensor's elements are in a file.
struct StoredElements {
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in elements
  int64_t first_byte = 0;        // of the element at index 0, in the file
  int64_t storage_byte = 0;      // of its storage
  int64_t storage_bytes = 0;
};

/// Reads the blob of `length` bytes at `offset`, without the elements. Throws DamageError or PickleError.
StoredElements read_tensor_blob(CheckedReader& file, int64_t offset, int64_t length);
PickleRef read_value_blob(CheckedReader& file, int64_t offset, int64_t length);

// Reading a part of a tensor stored in a file of any kind, with any strides.

/// The view [extents of box] of `tensor` (any shape) at `box`.
at::Tensor narrowed(at::Tensor tensor, const Box& box);

/// Reads `part` of the stored tensor into `into`: of the part's shape, any device, strides and dtype.
void read_elements(CheckedReader& file, const StoredElements& stored, const Box& part, const at::Tensor& into);

/// A shape as shown in messages: "[2, 3]".
inline std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

// The directory entry of a name; links are not followed.

/// From the listing of `path`'s parent folder; nothing if it does not exist. Throws StorageError.
inline std::optional<StorageEntry> entry_at(Storage& storage, const std::filesystem::path& path) {
  for (StorageEntry& entry : storage.list(path.has_parent_path() ? path.parent_path() : ".")) {
    if (entry.name == path.filename()) return std::move(entry);
  }
  return std::nullopt;
}

}  // namespace titan
