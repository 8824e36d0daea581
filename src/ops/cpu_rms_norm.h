// Row loops of the RMS norm on the CPU, one pass where ATen needs ten. Values are fp32 or bf16 in memory, fp32 in
// registers. Compiled with vectorisation for several instruction sets; results depend on the row alone, never on the
// thread count.
#pragma once

#include <cstdint>

#include "titan/kernels/cpu_values.h"

namespace titan {

struct RmsNormShape {
  int64_t rows;
  int64_t dim;
};

/// scale[r] = rsqrt(mean(x²) + ε); y = x·scale, rounded to the memory type before the weight unless `fused`, times
/// weight.
void cpu_rms_norm(float* y, float* scale, const float* x, const float* weight, RmsNormShape shape, float epsilon,
                  bool fused);
void cpu_rms_norm(BFloat16Bits* y, float* scale, const BFloat16Bits* x, const BFloat16Bits* weight, RmsNormShape shape,
                  float epsilon, bool fused);

/// dx = scale·(g − x̂·mean(g·x̂)) + d_residual with x̂ = x·scale, g = dy·weight; `weight_gradient` [dim] += Σ dy·x̂.
/// `d_residual` may be null.
void cpu_rms_norm_backward(float* dx, float* weight_gradient, const float* dy, const float* d_residual, const float* x,
                           const float* scale, const float* weight, RmsNormShape shape);
void cpu_rms_norm_backward(BFloat16Bits* dx, float* weight_gradient, const BFloat16Bits* dy,
                           const BFloat16Bits* d_residual, const BFloat16Bits* x, const float* scale,
                           const BFloat16Bits* weight, RmsNormShape shape);

}  // namespace titan
