#include "titan/ops/fused_float8.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

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

std::optional<at::Tensor> fused_magnitude(const FusedKernels& kernels, const at::Tensor& matrix, Float8Extent extent) {
  if (matrix.dim() != 2 || !kernels.fit({&matrix})) return std::nullopt;
  const at::TensorOptions options = matrix.options().dtype(at::kFloat);
  at::Tensor largest = extent == Float8Extent::tensor ? at::zeros({}, options)
                       : extent == Float8Extent::row  ? at::zeros({matrix.size(0), 1}, options)
                                                      : at::zeros({1, matrix.size(1)}, options);
  kernels.table().largest_magnitude({kernel_type(matrix), matrix.size(0), matrix.size(1), kernel_extent(extent),
                                     matrix.const_data_ptr(), static_cast<uint32_t*>(largest.mutable_data_ptr())},
                                    current_stream(matrix));
  return largest;
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
  a.format = format == Float8Format::e4m3 ? KernelFloat8::e4m3 : KernelFloat8::e5m2;
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
          [kernels, plain](const at::Tensor& matrix, const at::Tensor& scale, Float8Format format, Float8Sides sides) {
            const std::optional<Float8Matrix> result = fused_cast(*kernels, matrix, scale, format, sides);
            return result ? *result : plain.cast(matrix, scale, format, sides);
          }};
}

}  // namespace titan
