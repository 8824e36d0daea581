#include "titan/plan/parameter_spec.h"

#include <functional>
#include <numeric>

namespace titan {

int64_t ParameterSpec::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::optional<int64_t> ParameterSpec::split_over(MeshAxis axis) const {
  for (const AxisSplit& split : splits) {
    if (split.axis == axis) return split.dimension;
  }
  return std::nullopt;
}

}  // namespace titan
