// How one logical tensor is sharded over the axes of a device mesh: arithmetic only, no tensor, no communicator.
// Checkpoints, initialisation, clipping, export and the memory estimate use only this.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace titan {

/// A rectangular part of a logical tensor: offset and extent per dimension.
struct Box {
  std::vector<int64_t> offset;
  std::vector<int64_t> extent;

  int64_t numel() const;
  bool operator==(const Box&) const = default;
};

/// One cut: `dimension` is split into ceil-sized chunks over `parts` ranks of mesh axis `axis`; without a
/// dimension the tensor is replicated.
struct Split {
  std::string axis;
  int64_t parts = 1;
  std::optional<int64_t> dimension;
};

/// Splits are applied in order, each to what the previous ones left. FSDP over a tensor-parallel dimension ("strided
/// shard") is therefore written tp first, then dp_shard: the global index order is tp-major.
class TensorLayout {
 public:
  explicit TensorLayout(std::vector<int64_t> global_shape, std::vector<Split> splits = {});

  const std::vector<int64_t>& global_shape() const { return global_shape_; }
  const std::vector<Split>& splits() const { return splits_; }
  int64_t numel() const;

  /// The part that the rank with `coordinates` (one per split, in order) holds; the extent may be 0 in a dimension.
  Box box(std::span<const int64_t> coordinates) const;
  /// The part of the only rank, or of rank 0 along every split.
  Box first_box() const;
  /// True if the rank is the one that writes its box: coordinate 0 along every replicated split.
  bool owns(std::span<const int64_t> coordinates) const;

 private:
  std::vector<int64_t> global_shape_;
  std::vector<Split> splits_;
};

/// Elements [begin, end) of `size` that chunk `index` of `parts` ceil-sized chunks covers: the last ones short or
/// empty.
struct ChunkRange {
  int64_t begin;
  int64_t end;
};
ChunkRange ceil_chunk(int64_t size, int64_t parts, int64_t index);

}  // namespace titan
