#include "titan/plan/device_mesh.h"

#include <algorithm>

#include "titan/base/error.h"

namespace titan {

std::string_view name(MeshAxis axis) {
  constexpr std::array<std::string_view, 5> names{"pp", "dp_replicate", "dp_shard", "cp", "tp"};
  return names[static_cast<size_t>(axis)];
}

std::vector<MeshAxis> axes_of(std::string_view group_name) {
  using enum MeshAxis;
  using namespace group_names;
  if (group_name == kGather || group_name == kScatter) return {dp_shard, cp};
  if (group_name == kReplicate) return {dp_replicate};
  if (group_name == kTensor) return {tp};
  if (group_name == kContext) return {cp};
  if (group_name == kLoss) return {pp, dp_replicate, dp_shard, cp};
  if (group_name == kData) return {dp_replicate, dp_shard, cp};
  if (group_name == kModel) return {pp, dp_shard, cp, tp};
  if (group_name == kPipeline || group_name == kTied) return {pp};
  TITAN_CHECK(group_name == kWorld, group_name);
  return {kMeshAxes.begin(), kMeshAxes.end()};
}

DeviceMesh::DeviceMesh(ParallelDegrees degrees, int64_t world) : world_(world) {
  // Products are capped at world + 1, since they may overflow.
  const auto times = [world](int64_t product, int64_t degree) {
    return degree > world ? world + 1 : std::min(product * degree, world + 1);
  };
  const int64_t others = times(times(times(degrees.pp, degrees.dp_replicate), degrees.cp), degrees.tp);
  if (degrees.dp_shard == -1 && others > 0) degrees.dp_shard = world / others;
  sizes_ = {degrees.pp, degrees.dp_replicate, degrees.dp_shard, degrees.cp, degrees.tp};
  bool positive = true;
  int64_t product = 1;
  for (int64_t size : sizes_) {
    positive = positive && size >= 1;
    product = times(product, size);
  }
  if (!positive || product != world) {
    throw Error(ExitCode::bad_config,
                fmt::format("Invalid parallel dims: dp_replicate({}) * dp_shard({}) * cp({}) * tp({}) * pp({}) != "
                            "WORLD_SIZE({})",
                            degrees.dp_replicate, degrees.dp_shard, degrees.cp, degrees.tp, degrees.pp, world));
  }
}

int64_t DeviceMesh::coordinate(int64_t rank, MeshAxis axis) const {
  TITAN_CHECK(rank >= 0 && rank < world_, rank, world_);
  for (size_t inner = sizes_.size(); inner-- > static_cast<size_t>(axis) + 1;) rank /= sizes_[inner];
  return rank % size(axis);
}

int64_t DeviceMesh::size(std::span<const MeshAxis> axes) const {
  int64_t product = 1;
  for (MeshAxis axis : axes) product *= size(axis);
  return product;
}

std::vector<int64_t> DeviceMesh::group(int64_t rank, std::span<const MeshAxis> axes) const {
  std::vector<int64_t> ranks;
  for (int64_t other = 0; other < world_; ++other) {
    const bool shares = std::all_of(kMeshAxes.begin(), kMeshAxes.end(), [&](MeshAxis axis) {
      const bool free = std::find(axes.begin(), axes.end(), axis) != axes.end();
      return free || coordinate(other, axis) == coordinate(rank, axis);
    });
    if (shares) ranks.push_back(other);
  }
  return ranks;
}

int64_t DeviceMesh::data_parallel_rank(int64_t rank) const {
  return coordinate(rank, MeshAxis::dp_replicate) * size(MeshAxis::dp_shard) + coordinate(rank, MeshAxis::dp_shard);
}

}  // namespace titan
