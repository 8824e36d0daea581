// A parameter before it has memory: name, shape, initial distribution, and the dimension that tensor parallelism
// shards.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace titan {

/// Initial values: a pure function of (seed, name, global index), independent of the layout.
struct Initialiser {
  enum class Kind { normal, truncated_normal, ones, zeros };
  Kind kind = Kind::ones;
  double standard_deviation = 1.0;
  double lower = -2.0;  // truncated_normal: absolute bounds
  double upper = 2.0;
};

struct ParameterSpec {
  std::string name;  // torchtitan's fully qualified name
  std::vector<int64_t> shape;
  Initialiser initialiser;
  bool trainable = true;
  /// The dimension that tensor parallelism shards; none: replicated.
  std::optional<int64_t> tensor_parallel_dimension = std::nullopt;

  int64_t numel() const;
};

}  // namespace titan
