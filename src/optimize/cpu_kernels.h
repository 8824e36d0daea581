// Loops over contiguous fp32 memory that the optimizer spends its time in. Compiled with vectorisation for several
// instruction sets; the processor picks one at start. Every element's result depends on that element alone.
#pragma once

#include <cstdint>

#include "titan/kernels/adam.h"

namespace titan {

double cpu_sum_of_squares(const float* values, int64_t count);

/// One step over `count` elements; the gradient is multiplied by `clip`.
void cpu_adam(float* weight, const float* gradient, float* first, float* second, int64_t count,
              const AdamConstants& constants, double clip);

}  // namespace titan
