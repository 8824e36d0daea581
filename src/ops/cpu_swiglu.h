// SwiGLU on the CPU: one pass over memory each way, rounded once.
#pragma once

#include <cstdint>

#include "titan/kernels/cpu_values.h"

namespace titan {

/// out = silu(gate)·up; all contiguous, `count` numbers.
void cpu_swiglu(float* out, const float* gate, const float* up, int64_t count);
void cpu_swiglu(BFloat16Bits* out, const BFloat16Bits* gate, const BFloat16Bits* up, int64_t count);

/// d_up = d·silu(gate); d_gate = d·up·silu'(gate) with silu'(x) = σ(x)·(1 + x·(1 − σ(x))).
void cpu_swiglu_backward(float* d_gate, float* d_up, const float* d, const float* gate, const float* up, int64_t count);
void cpu_swiglu_backward(BFloat16Bits* d_gate, BFloat16Bits* d_up, const BFloat16Bits* d, const BFloat16Bits* gate,
                         const BFloat16Bits* up, int64_t count);

}  // namespace titan
