#include "titan/plan/device_mesh.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "titan/base/error.h"

namespace titan {
namespace {

ParallelDegrees degrees(int64_t pp, int64_t replicate, int64_t shard, int64_t cp, int64_t tp) {
  return {.pp = pp, .dp_replicate = replicate, .dp_shard = shard, .cp = cp, .tp = tp};
}

TEST(DeviceMesh, AxesLieOutermostToInnermostWithTensorParallelRanksAdjacent) {
  const DeviceMesh mesh(degrees(2, 2, 2, 2, 2), 32);
  EXPECT_EQ(mesh.coordinate(1, MeshAxis::tp), 1);
  EXPECT_EQ(mesh.coordinate(1, MeshAxis::cp), 0);
  EXPECT_EQ(mesh.coordinate(2, MeshAxis::cp), 1);
  EXPECT_EQ(mesh.coordinate(4, MeshAxis::dp_shard), 1);
  EXPECT_EQ(mesh.coordinate(8, MeshAxis::dp_replicate), 1);
  EXPECT_EQ(mesh.coordinate(16, MeshAxis::pp), 1);
  EXPECT_EQ(mesh.coordinate(15, MeshAxis::pp), 0);
  std::vector<std::string_view> names;
  for (MeshAxis axis : kMeshAxes) names.push_back(name(axis));
  EXPECT_EQ(names, (std::vector<std::string_view>{"pp", "dp_replicate", "dp_shard", "cp", "tp"}));
}

TEST(DeviceMesh, EveryRankHasItsOwnCoordinates) {
  const DeviceMesh mesh(degrees(3, 1, 2, 1, 5), 30);
  std::set<std::vector<int64_t>> seen;
  for (int64_t rank = 0; rank < mesh.world(); ++rank) {
    std::vector<int64_t> coordinates;
    for (MeshAxis axis : kMeshAxes) {
      coordinates.push_back(mesh.coordinate(rank, axis));
      EXPECT_LT(coordinates.back(), mesh.size(axis));
    }
    seen.insert(coordinates);
  }
  EXPECT_EQ(seen.size(), 30u);
}

TEST(DeviceMesh, AxesAreFoundByWhatTheirRanksDivide) {
  using enum DividedWork;
  EXPECT_EQ(axes_that_divide({units}), std::vector{MeshAxis::pp});
  EXPECT_EQ(axes_that_divide({positions, sequences}),
            (std::vector{MeshAxis::dp_replicate, MeshAxis::dp_shard, MeshAxis::cp}));
  EXPECT_EQ(axes_that_divide({units, sequences, positions, features}),
            std::vector<MeshAxis>(kMeshAxes.begin(), kMeshAxes.end()));
}

TEST(DeviceMesh, APlaceAlongSeveralAxesCountsTheLastFastest) {
  const DeviceMesh mesh(degrees(2, 2, 3, 2, 2), 48);
  const std::vector<MeshAxis> axes{MeshAxis::dp_shard, MeshAxis::cp};
  for (int64_t rank = 0; rank < mesh.world(); ++rank) {
    const std::vector<int64_t> members = mesh.members(rank, axes);
    EXPECT_EQ(members.at(static_cast<size_t>(mesh.coordinate(rank, axes))), rank);
  }
  EXPECT_EQ(mesh.coordinate(47, std::vector<MeshAxis>()), 0) << "alone";
}

TEST(DeviceMesh, MinusOneShardsOverWhatTheOtherDegreesLeave) {
  const DeviceMesh mesh(degrees(2, 2, -1, 1, 2), 16);
  EXPECT_EQ(mesh.size(MeshAxis::dp_shard), 2);
  EXPECT_EQ(mesh.data_parallel_degree(), 4);
  EXPECT_EQ(mesh.non_data_parallel_size(), 4);
}

TEST(DeviceMesh, RanksThatReadTheSameDataShareADataParallelRank) {
  const DeviceMesh mesh(degrees(2, 2, 3, 1, 2), 24);
  for (int64_t rank = 0; rank < mesh.world(); ++rank) {
    EXPECT_EQ(mesh.data_parallel_rank(rank), rank / 2 % 6);
  }
}

TEST(DeviceMesh, DegreesThatDoNotMultiplyToTheWorldAreRefusedInTorchtitansWords) {
  try {
    DeviceMesh(degrees(1, 2, 3, 1, 1), 8);
    FAIL() << "accepted 2 * 3 ranks in a world of 8";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_config);
    EXPECT_STREQ(error.what(),
                 "Invalid parallel dims: dp_replicate(2) * dp_shard(3) * cp(1) * tp(1) * pp(1) != WORLD_SIZE(8)");
  }
}

TEST(DeviceMesh, AWorldThatTheOtherDegreesDoNotDivideOrThatIsTooSmallIsRefused) {
  EXPECT_THROW(DeviceMesh(degrees(1, 1, -1, 1, 3), 8), Error);
  EXPECT_THROW(DeviceMesh(degrees(1, 1, -1, 1, 16), 8), Error);
  EXPECT_THROW(DeviceMesh(degrees(0, 1, -1, 1, 1), 8), Error);
  EXPECT_THROW(DeviceMesh(degrees(-1, -1, 1, 1, 1), 1), Error);
}

TEST(DeviceMesh, ARankOutsideTheWorldIsABug) {
  const DeviceMesh mesh(degrees(1, 1, 2, 1, 1), 2);
  EXPECT_THROW(mesh.coordinate(2, MeshAxis::tp), InvariantError);
  EXPECT_THROW(mesh.coordinate(-1, MeshAxis::tp), InvariantError);
}

}  // namespace
}  // namespace titan
