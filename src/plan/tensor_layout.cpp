#include "titan/plan/tensor_layout.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "titan/base/error.h"

namespace titan {
namespace {

int64_t product(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace

int64_t Box::numel() const { return product(extent); }

ChunkRange ceil_chunk(int64_t size, int64_t parts, int64_t index) {
  int64_t chunk = (size + parts - 1) / parts;
  int64_t begin = std::min(size, index * chunk);
  return {begin, std::min(size, begin + chunk)};
}

TensorLayout::TensorLayout(std::vector<int64_t> global_shape, std::vector<Split> splits)
    : global_shape_(std::move(global_shape)), splits_(std::move(splits)) {
  for (const Split& split : splits_) {
    TITAN_CHECK(split.parts >= 1, split.axis, split.parts);
    if (split.dimension) {
      TITAN_CHECK(*split.dimension >= 0 && *split.dimension < static_cast<int64_t>(global_shape_.size()), split.axis,
                  *split.dimension, global_shape_.size());
    }
  }
}

int64_t TensorLayout::numel() const { return product(global_shape_); }

Box TensorLayout::box(std::span<const int64_t> coordinates) const {
  TITAN_CHECK(coordinates.size() == splits_.size(), coordinates.size(), splits_.size());
  Box box{std::vector<int64_t>(global_shape_.size(), 0), global_shape_};
  for (size_t i = 0; i < splits_.size(); ++i) {
    if (!splits_[i].dimension) continue;
    auto dimension = static_cast<size_t>(*splits_[i].dimension);
    ChunkRange range = ceil_chunk(box.extent[dimension], splits_[i].parts, coordinates[i]);
    box.offset[dimension] += range.begin;
    box.extent[dimension] = range.end - range.begin;
  }
  return box;
}

Box TensorLayout::first_box() const { return box(std::vector<int64_t>(splits_.size(), 0)); }

bool TensorLayout::owns(std::span<const int64_t> coordinates) const {
  TITAN_CHECK(coordinates.size() == splits_.size(), coordinates.size(), splits_.size());
  for (size_t i = 0; i < splits_.size(); ++i) {
    if (!splits_[i].dimension && coordinates[i] != 0) return false;
  }
  return true;
}

}  // namespace titan
