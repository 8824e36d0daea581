// A parameter before it has memory: name, shape, initial distribution, and the mesh axes over which it is split.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "titan/plan/device_mesh.h"

namespace titan {

/// Initial values: a pure function of (seed, name, global index), independent of the layout.
struct Initialiser {
  enum class Kind { normal, truncated_normal, ones, zeros };
  Kind kind = Kind::ones;
  double standard_deviation = 1.0;
  double lower = -2.0;  // truncated_normal: absolute bounds
  double upper = 2.0;
};

/// A dimension that is split over the ranks of a mesh axis. Each of them computes with its own part, which is never
/// gathered: tensor parallelism, or experts that are spread over ranks.
struct AxisSplit {
  MeshAxis axis = MeshAxis::tp;
  int64_t dimension = 0;
};

struct ParameterSpec {
  std::string name;  // torchtitan's fully qualified name
  std::vector<int64_t> shape;
  Initialiser initialiser;
  bool trainable = true;
  std::vector<AxisSplit> splits = {};  // at most one per axis
  size_t group = 0;                    // of UnitDescription::groups

  int64_t numel() const;
  /// The dimension that is split over `axis`; none: each of its ranks computes with all of it.
  std::optional<int64_t> split_over(MeshAxis axis) const;
};

}  // namespace titan
