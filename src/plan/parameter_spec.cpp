#include "titan/plan/parameter_spec.h"

#include <functional>
#include <numeric>

namespace titan {

int64_t ParameterSpec::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

}  // namespace titan
