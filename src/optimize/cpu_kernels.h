// The optimizer's loops over contiguous memory, vectorised for several instruction sets and dispatched at run time.
// Every element's result depends on that element alone.
#pragma once

#include <cstdint>

#include "titan/kernels/adam.h"
#include "titan/kernels/cpu_values.h"
#include "titan/kernels/exact_sum.h"
#include "titan/kernels/stochastic_rounding.h"

namespace titan {

/// Adds the squares of `count` values to kExactSlots `slots` (layout: kernels/exact_sum.h). Not normalised: at most
/// 2^40 values may be added between two calls of exact_carry.
void cpu_add_squares(const float* values, int64_t count, int64_t* slots);
void cpu_add_squares(const BFloat16Bits* values, int64_t count, int64_t* slots);

/// Arrays of one step, `count` elements each; `copy`: null, or receives the new weights rounded to bf16.
struct AdamMemory {
  float* weight;
  const void* gradient;
  float* first;
  float* second;
  BFloat16Bits* copy;
  bool bf16_gradient;
};

/// One step over `count` elements starting at `begin`; the gradient is multiplied by `clip`.
void cpu_adam(const AdamMemory& memory, int64_t begin, int64_t count, const AdamConstants& constants, double clip);

/// The same for bf16 weights or moments, with stochastic rounding. `copy` is written only if the weight is fp32.
struct Bf16AdamMemory {
  void* weight;
  const void* gradient;
  void* first;
  void* second;
  BFloat16Bits* copy;
  bool bf16_weight;
  bool bf16_moments;
  bool bf16_gradient;
};

/// How a tensor's values are rounded in a step: element i in memory uses the random bits of place.index(i).
struct Rounding {
  RoundingKey key;
  RoundingPlace place;
};
void cpu_bf16_adam(const Bf16AdamMemory& memory, int64_t begin, int64_t count, const Rounding& rounding,
                   const AdamConstants& constants, double clip);

/// Rounds elements [begin, begin + count) of `values` into `target`, with the random bits that cpu_bf16_adam uses for
/// `which` of those elements.
void cpu_round(const float* values, BFloat16Bits* target, int64_t begin, int64_t count, const Rounding& rounding,
               KeptNumber which);

}  // namespace titan
