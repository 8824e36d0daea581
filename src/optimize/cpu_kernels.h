// Loops over contiguous fp32 memory that the optimizer spends its time in. Compiled with vectorisation for several
// instruction sets; the processor picks one at start. Every element's result depends on that element alone.
#pragma once

#include <cstdint>

#include "titan/kernels/adam.h"
#include "titan/kernels/cpu_values.h"
#include "titan/kernels/exact_sum.h"

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

}  // namespace titan
