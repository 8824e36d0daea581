// Float8: the two formats, the choice of scales, and the casts, behind an interface so that fused kernels can replace
// ATen's operations. Knows matrices, but no layers, ranks or configs.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "titan/plan/precision.h"

namespace titan {

/// e4m3 (torch's e4m3fn: no infinities) holds activations and weights, e5m2 the gradients of outputs.
enum class Float8Format { e4m3, e5m2 };

at::ScalarType scalar_type(Float8Format format);
/// The largest finite value: 448 for e4m3, 57344 for e5m2.
double largest_value(Float8Format format);

/// The granularity of a scale.
enum class Float8Extent { tensor, row, column };

/// The scale that maps `amax` (any shape, ≥ 0) to the format's largest value: that value / max(amax, 1e-12), computed
/// in fp64, stored in fp32 (torchao's rule); `power_of_two` rounds it down to a power of two. An infinite amax gives 0
/// and NaN gives NaN, so the cast hides neither.
at::Tensor float8_scale(const at::Tensor& amax, Float8Format format, bool power_of_two = false);

/// The factor applied before the cast, and its inverse, which products take: fp32, same shape.
struct Float8Scale {
  at::Tensor value;    // of the shape of the amax: [], [rows, 1] or [1, columns]
  at::Tensor inverse;  // of the same shape: the bits of value.reciprocal()

  bool defined() const { return value.defined(); }
  /// The scale of the transposed matrix.
  Float8Scale t() const { return {value.t(), inverse.t()}; }
};

/// Scales of several tensors in one allocation.
struct Float8Scales {
  at::Tensor block;  // [2, n, …]: the values, then the inverses

  Float8Scale operator[](int64_t index) const;
};

/// A float8 matrix in the layouts that products read: contiguous, transposed and contiguous, or both.
struct Float8Matrix {
  at::Tensor data;        // [rows, columns]
  at::Tensor transposed;  // [columns, rows]
};

enum class Float8Sides { data, transposed, both };

struct Float8Casts {
  /// max |x| per extent, fp32: shape [], [rows, 1] or [1, columns]. NaN if any value is NaN.
  std::function<at::Tensor(const at::Tensor& matrix, Float8Extent extent)> amax;
  /// amax of several whole tensors: [n]. `zeros` [n]: fp32 zeros that may be reused for the result; undefined:
  /// allocate.
  std::function<at::Tensor(const std::vector<at::Tensor>& matrices, const at::Tensor& zeros)> amaxes;
  /// float8_scale of each of `largest` (any shape, the same for all), and its inverse.
  std::function<Float8Scales(const std::vector<at::Tensor>& largest, Float8Format format, bool power_of_two)> scales;
  /// cast(clamp(fp32(x) · scale, ± largest value)) of `matrix` [rows, columns], rounded to nearest even; NaN stays
  /// NaN. `scale`: fp32, of a shape that `amax` returns.
  std::function<Float8Matrix(const at::Tensor& matrix, const at::Tensor& scale, Float8Format format, Float8Sides sides)>
      cast;
};

/// ATen implementation: the reference, and the fallback without fused kernels.
Float8Casts make_aten_float8_casts();

}  // namespace titan
