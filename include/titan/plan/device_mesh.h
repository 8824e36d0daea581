// The named mesh axes, outermost to innermost: pp, dp_replicate, dp_shard, cp, tp. Arithmetic only; communicators over
// the axes are created elsewhere (mesh_communicators.h).
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace titan {

enum class MeshAxis { pp, dp_replicate, dp_shard, cp, tp };
inline constexpr std::array kMeshAxes{MeshAxis::pp, MeshAxis::dp_replicate, MeshAxis::dp_shard, MeshAxis::cp,
                                      MeshAxis::tp};
std::string_view name(MeshAxis axis);

/// What the ranks along an axis divide among themselves. Code that treats axes by their kind asks for this, so that an
/// axis is listed here alone.
enum class DividedWork { units, sequences, positions, features };
DividedWork divided_along(MeshAxis axis);
/// The axes along which one of `work` is divided, outermost first.
std::vector<MeshAxis> axes_that_divide(std::initializer_list<DividedWork> work);

/// Names of the communicators that a run makes (docs/distributed.md).
namespace communicator_names {
inline constexpr const char* kGather = "fsdp_gather";
inline constexpr const char* kScatter = "fsdp_scatter";
inline constexpr const char* kReplicate = "dp_replicate";
inline constexpr const char* kMatrix = "matrix";
inline constexpr const char* kTensor = "tp";
inline constexpr const char* kContext = "cp";
inline constexpr const char* kLoss = "loss";
inline constexpr const char* kData = "data";
inline constexpr const char* kModel = "model";
inline constexpr const char* kPipeline = "pp";
inline constexpr const char* kTied = "tied";
inline constexpr const char* kWorld = "world";
}  // namespace communicator_names

/// The axes along which the members of a communicator differ. Of `tied`, only the two ranks with tied embeddings are
/// members. Weight groups that are sharded or replicated over other axes than most have communicators of their own,
/// whose names contain the axes: "fsdp_gather:dp_shard", "dp_replicate:dp_replicate+cp".
std::vector<MeshAxis> axes_of(std::string_view communicator);

/// Degrees as configured; `dp_shard` = -1 means "the rest of the world".
struct ParallelDegrees {
  int64_t pp = 1;
  int64_t dp_replicate = 1;
  int64_t dp_shard = -1;
  int64_t cp = 1;
  int64_t tp = 1;
};

class DeviceMesh {
 public:
  /// Resolves dp_shard = -1 and checks that the degrees multiply to `world`.
  /// Throws Error(bad_config) with torchtitan's text "Invalid parallel dims: … != WORLD_SIZE(…)" when they do not.
  DeviceMesh(ParallelDegrees degrees, int64_t world);

  int64_t world() const { return world_; }
  int64_t size(MeshAxis axis) const { return sizes_[static_cast<size_t>(axis)]; }
  /// Position of `rank` along `axis`; ranks are numbered row-major, tp fastest.
  int64_t coordinate(int64_t rank, MeshAxis axis) const;

  int64_t size(std::span<const MeshAxis> axes) const;
  /// Position of `rank` among the ranks that differ along `axes` only, row-major, the last axis fastest.
  int64_t coordinate(int64_t rank, std::span<const MeshAxis> axes) const;
  /// The ranks that differ from `rank` along `axes` only, including `rank`, ascending: the members of a communicator.
  std::vector<int64_t> members(int64_t rank, std::span<const MeshAxis> axes) const;

  /// Ranks that read different sequences: those along the axes that divide sequences (dp_replicate × dp_shard).
  int64_t data_parallel_degree() const;
  int64_t data_parallel_rank(int64_t rank) const;
  /// The name of the communicator over `axes` that does what `base` does: `base` itself if its members are the same;
  /// empty if this rank would be alone in it, but not in `base`.
  std::string communicator_over(const char* base, std::span<const MeshAxis> axes) const;
  /// Ranks that share one copy of the model: cp × tp × pp.
  int64_t non_data_parallel_size() const { return world_ / data_parallel_degree(); }

 private:
  int64_t world_;
  std::array<int64_t, kMeshAxes.size()> sizes_;
};

/// One rank of a mesh; by default the single rank of a mesh of size 1.
struct MeshPlace {
  DeviceMesh mesh{ParallelDegrees{1, 1, 1, 1, 1}, 1};
  int64_t rank = 0;

  int64_t coordinate(MeshAxis axis) const { return mesh.coordinate(rank, axis); }
};

}  // namespace titan
