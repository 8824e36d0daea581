#include "titan/ops/fused_float8.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>

namespace titan {
namespace {

KernelExtent kernel_extent(Float8Extent extent) {
  if (extent == Float8Extent::tensor) return KernelExtent::matrix;
  return extent == Float8Extent::row ? KernelExtent::row : KernelExtent::column;
}

/// What shares a number of `scale`: of shape [], [rows, 1] or [1, columns].
std::optional<KernelExtent> extent_of(const at::Tensor& scale, const at::Tensor& matrix) {
  if (scale.scalar_type() != at::kFloat || !scale.is_contiguous()) return std::nullopt;
  if (scale.numel() == 1) return KernelExtent::matrix;
  if (scale.dim() != 2) return std::nullopt;
  if (scale.size(0) == matrix.size(0) && scale.size(1) == 1) return KernelExtent::row;
  if (scale.size(1) == matrix.size(1) && scale.size(0) == 1) return KernelExtent::column;
  return std::nullopt;
}

void raise(const FusedKernels& kernels, const at::Tensor& matrix, Float8Extent extent, float* largest) {
  // The bits of magnitudes order as they do.
  kernels.table().largest_magnitude({kernel_type(matrix), matrix.size(0), matrix.size(1), kernel_extent(extent),
                                     matrix.const_data_ptr(), reinterpret_cast<uint32_t*>(largest)},
                                    current_stream(matrix));
}

std::optional<at::Tensor> fused_magnitude(const FusedKernels& kernels, const at::Tensor& matrix, Float8Extent extent) {
  if (matrix.dim() != 2 || !kernels.fit({&matrix})) return std::nullopt;
  const at::TensorOptions options = matrix.options().dtype(at::kFloat);
  at::Tensor largest = extent == Float8Extent::tensor ? at::zeros({}, options)
                       : extent == Float8Extent::row  ? at::zeros({matrix.size(0), 1}, options)
                                                      : at::zeros({1, matrix.size(1)}, options);
  raise(kernels, matrix, extent, largest.mutable_data_ptr<float>());
  return largest;
}

std::optional<at::Tensor> fused_magnitudes(const FusedKernels& kernels, const std::vector<at::Tensor>& matrices,
                                           const at::Tensor& zeros) {
  const bool fit = std::all_of(matrices.begin(), matrices.end(),
                               [&](const at::Tensor& matrix) { return matrix.dim() == 2 && kernels.fit({&matrix}); });
  if (matrices.empty() || !fit) return std::nullopt;
  const auto count = static_cast<int64_t>(matrices.size());
  at::Tensor largest = zeros.defined() ? zeros : at::zeros({count}, matrices[0].options().dtype(at::kFloat));
  for (int64_t i = 0; i < count; ++i) {
    raise(kernels, matrices[static_cast<size_t>(i)], Float8Extent::tensor, largest.mutable_data_ptr<float>() + i);
  }
  return largest;
}

KernelFloat8 kernel_format(Float8Format format) {
  return format == Float8Format::e4m3 ? KernelFloat8::e4m3 : KernelFloat8::e5m2;
}

std::optional<Float8Scales> fused_scales(const FusedKernels& kernels, const std::vector<at::Tensor>& largest,
                                         Float8Format format, bool power_of_two) {
  const bool fit = std::all_of(largest.begin(), largest.end(), [&](const at::Tensor& magnitudes) {
    return magnitudes.scalar_type() == at::kFloat && kernels.fit({&magnitudes});
  });
  if (largest.empty() || !fit) return std::nullopt;
  const int64_t each = largest[0].numel();
  const auto arrays = static_cast<int64_t>(largest.size());
  std::vector<int64_t> shape{2, arrays};
  shape.insert(shape.end(), largest[0].sizes().begin(), largest[0].sizes().end());
  Float8Scales scales{at::empty(shape, largest[0].options())};
  auto* values = scales.block.mutable_data_ptr<float>();
  for (int64_t first = 0; first < arrays; first += kMostMagnitudeArrays) {
    ScalesOfMagnitudes a;
    a.format = kernel_format(format);
    a.power_of_two = power_of_two;
    a.arrays = static_cast<int>(std::min<int64_t>(arrays - first, kMostMagnitudeArrays));
    a.each = each;
    for (int i = 0; i < a.arrays; ++i) a.largest[i] = largest[static_cast<size_t>(first + i)].const_data_ptr<float>();
    a.values = values + first * each;
    a.inverses = values + (arrays + first) * each;
    kernels.table().scales_of_magnitudes(a, current_stream(largest[0]));
  }
  return scales;
}

std::optional<Float8Matrix> fused_cast(const FusedKernels& kernels, const at::Tensor& matrix, const at::Tensor& scale,
                                       Float8Format format, Float8Sides sides) {
  if (matrix.dim() != 2 || !kernels.fit({&matrix})) return std::nullopt;
  const std::optional<KernelExtent> extent = extent_of(scale, matrix);
  if (!extent) return std::nullopt;
  Float8Matrix result;
  const at::TensorOptions options = matrix.options().dtype(scalar_type(format));
  Float8Cast a;
  a.type = kernel_type(matrix);
  a.format = kernel_format(format);
  a.rows = matrix.size(0);
  a.columns = matrix.size(1);
  a.matrix = matrix.const_data_ptr();
  a.extent = *extent;
  a.scale = scale.const_data_ptr<float>();
  if (sides != Float8Sides::transposed) {
    result.data = at::empty({a.rows, a.columns}, options);
    a.data = static_cast<uint8_t*>(result.data.mutable_data_ptr());
  }
  if (sides != Float8Sides::data) {
    result.transposed = at::empty({a.columns, a.rows}, options);
    a.transposed = static_cast<uint8_t*>(result.transposed.mutable_data_ptr());
  }
  if (!supported(a)) {
    kernels.fall_back(fmt::format("a float8 cast of [{}, {}]", a.rows, a.columns));
    return std::nullopt;
  }
  kernels.table().float8_cast(a, current_stream(matrix));
  return result;
}

}  // namespace

Float8Casts make_fused_float8_casts(std::shared_ptr<const FusedKernels> kernels) {
  const Float8Casts plain = make_aten_float8_casts();
  return {[kernels, plain](const at::Tensor& matrix, Float8Extent extent) {
            const std::optional<at::Tensor> largest = fused_magnitude(*kernels, matrix, extent);
            return largest ? *largest : plain.largest_magnitude(matrix, extent);
          },
          [kernels, plain](const std::vector<at::Tensor>& matrices, const at::Tensor& zeros) {
            const std::optional<at::Tensor> largest = fused_magnitudes(*kernels, matrices, zeros);
            return largest ? *largest : plain.largest_magnitudes(matrices, zeros);
          },
          [kernels, plain](const std::vector<at::Tensor>& largest, Float8Format format, bool power_of_two) {
            const std::optional<Float8Scales> scales = fused_scales(*kernels, largest, format, power_of_two);
            return scales ? *scales : plain.scales(largest, format, power_of_two);
          },
          [kernels, plain](const at::Tensor& matrix, const at::Tensor& scale, Float8Format format, Float8Sides sides) {
            const std::optional<Float8Matrix> result = fused_cast(*kernels, matrix, scale, format, sides);
            return result ? *result : plain.cast(matrix, scale, format, sides);
          }};
}

}  // namespace titan
