// The loop of an Adam step over plain memory, in whatever dtypes weight and moments are kept. Included by the cpu_*.cpp
// files that instantiate it for their instruction sets.
#pragma once

#include <cstdint>

#include "titan/kernels/adam.h"
#include "titan/kernels/cpu_values.h"
#include "titan/kernels/stochastic_rounding.h"

namespace titan {

/// `store(which, i, value, out)` puts a new number of element i where it is kept; `keep(i, weight)` is called with
/// every new weight before it is stored.
template <class Weight, class Moment, class Store, class Keep>
TITAN_INLINE void adam_loop(Weight* __restrict weight, const float* __restrict gradient, Moment* __restrict first,
                            Moment* __restrict second, int64_t count, const AdamConstants& constants, double clip,
                            const Store& store, const Keep& keep) {
  const AdamConstants s = constants;
  const double coupled = constants.coupled;
  const float factor = static_cast<float>(clip);
  for (int64_t i = 0; i < count; ++i) {
    const float before = widen(weight[i]);
    // Adam's two terms may all but cancel, and it makes a step of full size of whatever is left: they are added in
    // fp64.
    const float g = coupled == 0 ? gradient[i] * factor : static_cast<float>(gradient[i] * clip + coupled * before);
    const float m = s.beta1 * widen(first[i]) + (1 - s.beta1) * g;
    const float v = s.beta2 * widen(second[i]) + (1 - s.beta2) * g * g;
    const float w = before * s.decay - s.step_size * m / (__builtin_sqrtf(v) * s.root_scale + s.epsilon);
    store(KeptNumber::first_moment, i, m, first[i]);
    store(KeptNumber::second_moment, i, v, second[i]);
    store(KeptNumber::weight, i, w, weight[i]);
    keep(i, weight[i]);
  }
}

}  // namespace titan
