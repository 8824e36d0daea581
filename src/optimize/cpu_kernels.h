// Loops over contiguous fp32 memory that the optimizer spends its time in. Compiled with vectorisation for several
// instruction sets; the processor picks one at start. Every element's result depends on that element alone.
#pragma once

#include <cstdint>

namespace titan {

double cpu_sum_of_squares(const float* values, int64_t count);

/// Adam's constants of one step; formulas in optimizer.h.
struct AdamStep {
  float clip;          // multiplies the gradient
  float beta1, beta2;
  float epsilon;
  float step_size;     // lr / (1 − β1^t)
  float root_scale;    // 1 / √(1 − β2^t)
  float decay;         // AdamW: 1 − lr·wd multiplies the weight
  float coupled;       // Adam: wd·weight joins the gradient
};

void cpu_adam(float* weight, const float* gradient, float* first, float* second, int64_t count, const AdamStep& step);

}  // namespace titan
