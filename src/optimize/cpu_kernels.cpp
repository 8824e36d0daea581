#include "cpu_kernels.h"

#include <cmath>

// One body, several instruction sets. Loops need -O3 and no errno from sqrt to become vectors.
#define TITAN_VECTORISED \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), optimize("O3", "no-math-errno")))

namespace titan {

TITAN_VECTORISED double cpu_sum_of_squares(const float* values, int64_t count) {
  constexpr int64_t kLanes = 32;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = values[i + lane];
      lanes[lane] += value * value;
    }
  }
  double total = 0;
  for (double lane : lanes) total += lane;
  for (; i < count; ++i) total += static_cast<double>(values[i]) * values[i];
  return total;
}

TITAN_VECTORISED void cpu_adam(float* __restrict weight, const float* __restrict gradient, float* __restrict first,
                               float* __restrict second, int64_t count, const AdamStep& step) {
  const AdamStep s = step;
  for (int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] * s.clip + s.coupled * weight[i];
    const float m = s.beta1 * first[i] + (1 - s.beta1) * g;
    const float v = s.beta2 * second[i] + (1 - s.beta2) * g * g;
    first[i] = m;
    second[i] = v;
    weight[i] = weight[i] * s.decay - s.step_size * m / (std::sqrt(v) * s.root_scale + s.epsilon);
  }
}

}  // namespace titan
