// Loops over contiguous memory that the optimizer spends its time in. Compiled with vectorisation for several
// instruction sets; the processor picks one at start. Every element's result depends on that element alone.
#pragma once

#include <cstdint>

#include "titan/kernels/adam.h"
#include "titan/kernels/cpu_values.h"
#include "titan/kernels/exact_sum.h"
#include "titan/kernels/stochastic_rounding.h"

namespace titan {

/// Adds the squares of `count` values to kExactSlots `slots`, laid out as kernels/exact_sum.h says. Not normalised: at
/// most 2^40 values may be added between two calls of exact_carry.
void cpu_add_squares(const float* values, int64_t count, int64_t* slots);

/// Memory of one step: `count` elements each; `copy` is null or receives the new weights rounded to bf16.
struct AdamMemory {
  float* weight;
  const float* gradient;
  float* first;
  float* second;
  BFloat16Bits* copy;
};

/// One step over `count` elements from element `begin` on; the gradient is multiplied by `clip`.
void cpu_adam(const AdamMemory& memory, int64_t begin, int64_t count, const AdamConstants& constants, double clip);

/// The same where weight or moments, or both, are kept in bf16 and rounded stochastically. `copy` is written only where
/// the weight is fp32.
struct Bf16AdamMemory {
  void* weight;
  const float* gradient;
  void* first;
  void* second;
  BFloat16Bits* copy;
  bool bf16_weight;
  bool bf16_moments;
};

/// How the numbers of a tensor are rounded in a step: element i of the memory has the chances of place.index(i).
struct Rounding {
  RoundingKey key;
  RoundingPlace place;
};
void cpu_bf16_adam(const Bf16AdamMemory& memory, int64_t begin, int64_t count, const Rounding& rounding,
                   const AdamConstants& constants, double clip);

/// Elements [begin, begin + count) of `values` rounded into `target`, with the chances that the numbers `which` of
/// those elements have in cpu_bf16_adam.
void cpu_round(const float* values, BFloat16Bits* target, int64_t begin, int64_t count, const Rounding& rounding,
               KeptNumber which);

}  // namespace titan
