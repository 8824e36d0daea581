// Elementwise CPU kernels over raw memory: embedding gradient, RMS norm, rotary embedding, SwiGLU. No tensors.
#pragma once

#include <cstdint>

#include "titan/kernels/cpu_values.h"

namespace titan {

/// The gradient's range of vocabulary rows, and the vocabulary row of each token.
struct EmbeddingRows {
  int64_t first;  // vocabulary row of the first gradient row; tokens outside [first, first + rows) are skipped
  int64_t rows;
  int64_t columns;
  const int64_t* tokens;
  int64_t count;  // number of tokens
};

/// gradient[tokens[i] − first] += dy[i] in columns [begin, end), in the order of i: the same bits however columns are
/// split over threads.
void cpu_add_embedding_rows(float* gradient, const float* dy, const EmbeddingRows& shape, int64_t begin, int64_t end);
void cpu_add_embedding_rows(float* gradient, const BFloat16Bits* dy, const EmbeddingRows& shape, int64_t begin,
                            int64_t end);

// RMS norm on the CPU in a single pass per row. Values are fp32 or bf16 in memory and fp32 in registers. Vectorised for
// several instruction sets; results depend on the row alone, never on the thread count.

struct RmsNormShape {
  int64_t rows;
  int64_t dim;
};

/// scale[r] = rsqrt(mean(x²) + ε); y = x·scale·weight, where x·scale is rounded to the memory dtype first unless
/// `fused`.
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

// Rotary embedding on the CPU: a single pass, in place or not.

struct RotaryShape {
  int64_t heads;
  int64_t head_dim;  // even
  int64_t rows;      // rows of the table; token t uses row t modulo this
  int64_t x_stride;  // elements from a token to the next
  int64_t out_stride;
};

/// Floats of scratch memory per call, aligned to 64 bytes.
int64_t rotary_scratch(const RotaryShape& shape);

/// Rotates tokens [first, last) of x [tokens, heads · head_dim] (adjacent within a token): multiplies each pair (a, b)
/// by the complex number of its row, or with `inverse` by the conjugate. `table`: [rows, head_dim / 2] pairs (cos,
/// sin). `out` may alias `x`.
void cpu_rotate(float* out, const float* x, const float* table, const RotaryShape& shape, int64_t first, int64_t last,
                bool inverse, float* scratch);
void cpu_rotate(BFloat16Bits* out, const BFloat16Bits* x, const float* table, const RotaryShape& shape, int64_t first,
                int64_t last, bool inverse, float* scratch);

// SwiGLU on the CPU: a single pass each way, rounded once.

/// out = silu(gate)·up; contiguous, `count` elements.
void cpu_swiglu(float* out, const float* gate, const float* up, int64_t count);
void cpu_swiglu(BFloat16Bits* out, const BFloat16Bits* gate, const BFloat16Bits* up, int64_t count);

/// d_up = d·silu(gate); d_gate = d·up·silu'(gate) with silu'(x) = σ(x)·(1 + x·(1 − σ(x))).
void cpu_swiglu_backward(float* d_gate, float* d_up, const float* d, const float* gate, const float* up, int64_t count);
void cpu_swiglu_backward(BFloat16Bits* d_gate, BFloat16Bits* d_up, const BFloat16Bits* d, const BFloat16Bits* gate,
                         const BFloat16Bits* up, int64_t count);

}  // namespace titan
