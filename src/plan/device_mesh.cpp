#include "titan/plan/device_mesh.h"

#include <algorithm>

#include "titan/base/error.h"
#include "titan/base/text.h"

namespace titan {

namespace {

/// Axes are indices into arrays of names and sizes, and their order is that of the ranks' numbers.
constexpr bool are_listed_in_order() {
  for (size_t i = 0; i < kMeshAxes.size(); ++i) {
    if (static_cast<size_t>(kMeshAxes[i]) != i) return false;
  }
  return true;
}
static_assert(are_listed_in_order());

}  // namespace

std::string_view name(MeshAxis axis) {
  constexpr std::array names{"pp", "dp_replicate", "dp_shard", "cp", "tp"};
  static_assert(names.size() == kMeshAxes.size());
  return names[static_cast<size_t>(axis)];
}

DividedWork divided_along(MeshAxis axis) {
  switch (axis) {
    case MeshAxis::pp:
      return DividedWork::units;
    case MeshAxis::dp_replicate:
    case MeshAxis::dp_shard:
      return DividedWork::sequences;
    case MeshAxis::cp:
      return DividedWork::positions;
    case MeshAxis::tp:
      return DividedWork::features;
  }
  TITAN_CHECK(false && "an axis", static_cast<int>(axis));
}

std::vector<MeshAxis> axes_that_divide(std::initializer_list<DividedWork> work) {
  std::vector<MeshAxis> axes;
  for (const MeshAxis axis : kMeshAxes) {
    if (std::find(work.begin(), work.end(), divided_along(axis)) != work.end()) axes.push_back(axis);
  }
  return axes;
}

namespace {

MeshAxis axis_named(std::string_view word) {
  const auto found =
      std::find_if(kMeshAxes.begin(), kMeshAxes.end(), [&](MeshAxis axis) { return name(axis) == word; });
  TITAN_CHECK(found != kMeshAxes.end(), word);
  return *found;
}

}  // namespace

std::vector<MeshAxis> axes_of(std::string_view communicator) {
  using enum MeshAxis;
  using namespace communicator_names;
  if (const size_t colon = communicator.find(':'); colon != std::string_view::npos) {
    std::vector<MeshAxis> axes;
    for (const std::string& word : split(communicator.substr(colon + 1), '+')) axes.push_back(axis_named(word));
    return axes;
  }
  if (communicator == kGather || communicator == kScatter) return {dp_shard, cp};
  if (communicator == kReplicate) return {dp_replicate};
  if (communicator == kMatrix) return {dp_shard, cp, tp};
  if (communicator == kTensor) return {tp};
  if (communicator == kContext) return {cp};
  if (communicator == kLoss) return {pp, dp_replicate, dp_shard, cp};
  if (communicator == kData) return {dp_replicate, dp_shard, cp};
  if (communicator == kModel) return {pp, dp_shard, cp, tp};
  if (communicator == kPipeline || communicator == kTied) return {pp};
  TITAN_CHECK(communicator == kWorld, communicator);
  return {kMeshAxes.begin(), kMeshAxes.end()};
}

DeviceMesh::DeviceMesh(ParallelDegrees degrees, int64_t world) : world_(world) {
  // Products are capped at world + 1, since they may overflow.
  const auto times = [world](int64_t product, int64_t degree) {
    return degree > world ? world + 1 : std::min(product * degree, world + 1);
  };
  const int64_t others = times(times(times(degrees.pp, degrees.dp_replicate), degrees.cp), degrees.tp);
  if (degrees.dp_shard == -1 && others > 0) degrees.dp_shard = world / others;
  const std::array sizes{degrees.pp, degrees.dp_replicate, degrees.dp_shard, degrees.cp, degrees.tp};
  static_assert(sizes.size() == kMeshAxes.size());
  sizes_ = sizes;
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

int64_t DeviceMesh::coordinate(int64_t rank, std::span<const MeshAxis> axes) const {
  int64_t position = 0;
  for (const MeshAxis axis : axes) position = position * size(axis) + coordinate(rank, axis);
  return position;
}

int64_t DeviceMesh::size(std::span<const MeshAxis> axes) const {
  int64_t product = 1;
  for (MeshAxis axis : axes) product *= size(axis);
  return product;
}

std::vector<int64_t> DeviceMesh::members(int64_t rank, std::span<const MeshAxis> axes) const {
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

std::string DeviceMesh::communicator_over(const char* base, std::span<const MeshAxis> axes) const {
  const auto wide = [this](std::span<const MeshAxis> all) {
    std::vector<MeshAxis> kept(all.begin(), all.end());
    std::erase_if(kept, [this](MeshAxis axis) { return size(axis) == 1; });
    std::sort(kept.begin(), kept.end());
    return kept;
  };
  const std::vector<MeshAxis> own = wide(axes);
  if (own == wide(axes_of(base))) return base;
  if (own.empty()) return {};
  std::vector<std::string> words;
  for (const MeshAxis axis : own) words.emplace_back(name(axis));
  return fmt::format("{}:{}", base, join(words, "+"));
}

int64_t DeviceMesh::data_parallel_degree() const { return size(axes_that_divide({DividedWork::sequences})); }

int64_t DeviceMesh::data_parallel_rank(int64_t rank) const {
  return coordinate(rank, axes_that_divide({DividedWork::sequences}));
}

}  // namespace titan
