#include "cpu_kernels.h"

// One body, several instruction sets; cmake/Parts.cmake gives this file the options that turn its loops into vectors.
#define TITAN_VECTORISED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))

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
                               float* __restrict second, int64_t count, const AdamConstants& constants, double clip) {
  const AdamConstants s = constants;
  const double coupled = constants.coupled;
  const float factor = static_cast<float>(clip);
  for (int64_t i = 0; i < count; ++i) {
    // Adam's two terms may all but cancel, and it makes a step of full size of whatever is left: they are added in
    // fp64.
    const float g = coupled == 0 ? gradient[i] * factor : static_cast<float>(gradient[i] * clip + coupled * weight[i]);
    const float m = s.beta1 * first[i] + (1 - s.beta1) * g;
    const float v = s.beta2 * second[i] + (1 - s.beta2) * g * g;
    first[i] = m;
    second[i] = v;
    weight[i] = weight[i] * s.decay - s.step_size * m / (__builtin_sqrtf(v) * s.root_scale + s.epsilon);
  }
}

}  // namespace titan
