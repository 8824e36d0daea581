#include "cpu_kernels.h"

namespace titan {
namespace {

/// `keep(i, weight)` is called with every new weight.
template <class Keep>
TITAN_INLINE void adam(float* __restrict weight, const float* __restrict gradient, float* __restrict first,
                       float* __restrict second, int64_t count, const AdamConstants& constants, double clip,
                       const Keep& keep) {
  const AdamConstants s = constants;
  const double coupled = constants.coupled;
  const float factor = static_cast<float>(clip);
  for (int64_t i = 0; i < count; ++i) {
    // Adam's two terms may all but cancel, and it makes a step of full size of whatever is left: they are added in
    // fp64.
    const float g = coupled == 0 ? gradient[i] * factor : static_cast<float>(gradient[i] * clip + coupled * weight[i]);
    const float m = s.beta1 * first[i] + (1 - s.beta1) * g;
    const float v = s.beta2 * second[i] + (1 - s.beta2) * g * g;
    const float w = weight[i] * s.decay - s.step_size * m / (__builtin_sqrtf(v) * s.root_scale + s.epsilon);
    first[i] = m;
    second[i] = v;
    weight[i] = w;
    keep(i, w);
  }
}

}  // namespace

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

TITAN_VECTORISED void cpu_adam(const AdamMemory& memory, int64_t begin, int64_t count, const AdamConstants& constants,
                               double clip) {
  float* __restrict weight = memory.weight + begin;
  const float* __restrict gradient = memory.gradient + begin;
  float* __restrict first = memory.first + begin;
  float* __restrict second = memory.second + begin;
  BFloat16Bits* __restrict copy = memory.copy ? memory.copy + begin : nullptr;
  if (copy) {
    adam(weight, gradient, first, second, count, constants, clip,
         [=](int64_t i, float value) { narrow(value, copy[i]); });
  } else {
    adam(weight, gradient, first, second, count, constants, clip, [](int64_t, float) {});
  }
}

}  // namespace titan
