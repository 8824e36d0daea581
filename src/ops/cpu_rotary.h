// Rotary embedding on the CPU: one pass over memory, in place or not.
#pragma once

#include <cstdint>

#include "titan/kernels/cpu_values.h"

namespace titan {

struct RotaryShape {
  int64_t heads;
  int64_t head_dim;  // even
  int64_t rows;      // of the table; token t turns by row t modulo this
};

/// Floats of scratch memory, aligned to 64 bytes, that one call needs.
int64_t rotary_scratch(const RotaryShape& shape);

/// Tokens [first, last) of x [tokens, heads, head_dim]: each pair (a, b) times the complex number of its row, or with
/// `inverse` its conjugate. `table` is [rows, head_dim / 2] pairs (cos, sin). `out` may be `x`.
void cpu_rotate(float* out, const float* x, const float* table, const RotaryShape& shape, int64_t first, int64_t last,
                bool inverse, float* scratch);
void cpu_rotate(BFloat16Bits* out, const BFloat16Bits* x, const float* table, const RotaryShape& shape, int64_t first,
                int64_t last, bool inverse, float* scratch);

}  // namespace titan
