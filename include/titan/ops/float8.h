// Float8: the two formats, how a scale is chosen, and the casts, behind an interface so that kernels can take the place
// of ATen's operations. Knows matrices and nothing of layers, ranks or configs.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace titan {

/// e4m3 (torch's e4m3fn: no infinities) holds activations and weights, e5m2 the gradients of outputs.
enum class Float8Format { e4m3, e5m2 };

/// What shares one scale, and which operands are cast.
enum class Float8Recipe {
  tensorwise,          // a scale per tensor; gradients in e5m2
  rowwise,             // a scale for each row of a product's operands, a power of two; gradients in e4m3, too
  rowwise_with_gw_hp,  // rowwise, but weight gradients are products of the compute dtype, and the weight that makes the
                       // input's gradient has one scale
};

at::ScalarType scalar_type(Float8Format format);
/// The largest finite value: 448, 57344.
double largest_value(Float8Format format);

/// What shares a scale.
enum class Float8Extent { tensor, row, column };

/// The scale that brings `amax` (of any shape, ≥ 0) to the format's largest value: that value / max(amax,
/// 1e-12), in fp64, kept in fp32 (torchao's rule); with `power_of_two` the greatest one that is no greater. An infinite
/// amax gives 0 and NaN gives NaN, so that neither is hidden by the cast.
at::Tensor float8_scale(const at::Tensor& amax, Float8Format format, bool power_of_two = false);

/// What values are multiplied by to become float8, and what undoes it, as products take it: fp32, of one shape.
struct Float8Scale {
  at::Tensor value;
  at::Tensor inverse;  // the bits of value.reciprocal()

  bool defined() const { return value.defined(); }
  /// As the transposed matrix has it.
  Float8Scale t() const { return {value.t(), inverse.t()}; }
};

/// `value` with its inverse.
Float8Scale float8_scale_of(const at::Tensor& value);

/// Scales of several tensors in one block of memory.
struct Float8Scales {
  at::Tensor block;  // [2, n, …]: the values, then the inverses

  Float8Scale operator[](int64_t index) const;
};

/// A matrix in float8 as products read it: rows contiguous, its transpose's rows contiguous, or both.
struct Float8Matrix {
  at::Tensor data;        // [rows, columns]
  at::Tensor transposed;  // [columns, rows]
};

/// Which of the two a caller will read.
enum class Float8Sides { data, transposed, both };

struct Float8Casts {
  /// max |x| over what shares a scale, fp32: of shape [], [rows, 1] or [1, columns]. NaN where there is one.
  std::function<at::Tensor(const at::Tensor& matrix, Float8Extent extent)> amax;
  /// The same of several whole tensors: [n]. `zeros` [n], fp32 zeros that may become the result; undefined: new memory.
  std::function<at::Tensor(const std::vector<at::Tensor>& matrices, const at::Tensor& zeros)> amaxes;
  /// float8_scale of each of `largest`, which are of one shape, and its inverse.
  std::function<Float8Scales(const std::vector<at::Tensor>& largest, Float8Format format, bool power_of_two)> scales;
  /// cast(clamp(fp32(x) · scale, ± largest value)), to the nearest, ties to even; NaN stays NaN. `scale` fp32, of a
  /// shape that `amax` gives.
  std::function<Float8Matrix(const at::Tensor& matrix, const at::Tensor& scale, Float8Format format, Float8Sides sides)>
      cast;
};

/// ATen's operations: the reference, and what runs where there are no kernels.
Float8Casts make_aten_float8_casts();

}  // namespace titan
