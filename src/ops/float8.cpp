#include "titan/ops/float8.h"

#include <ATen/ATen.h>

#include "tensor_checks.h"
#include "titan/base/error.h"

namespace titan {
namespace {

constexpr double kLeastAmax = 1e-12;           // torchao's: a matrix of zeros has a finite scale
constexpr int32_t kExponentBits = 0x7F800000;  // fp32; without a mantissa: the power of two below

at::Tensor amax(const at::Tensor& matrix, Float8Extent extent) {
  TITAN_CHECK(matrix.is_floating_point() && (extent == Float8Extent::tensor || matrix.dim() == 2), summary_of(matrix));
  if (matrix.numel() == 0 && extent == Float8Extent::tensor) {
    return at::zeros({}, matrix.options().dtype(at::kFloat));
  }
  const at::Tensor amaxes = matrix.abs();
  if (extent == Float8Extent::tensor) return amaxes.amax().to(at::kFloat);
  return amaxes.amax({extent == Float8Extent::row ? 1 : 0}, /*keepdim=*/true).to(at::kFloat);
}

at::Tensor amaxes(const std::vector<at::Tensor>& matrices, const at::Tensor&) {
  std::vector<at::Tensor> largest;
  for (const at::Tensor& matrix : matrices) largest.push_back(amax(matrix, Float8Extent::tensor));
  return at::stack(largest);
}

Float8Scales scales(const std::vector<at::Tensor>& largest, Float8Format format, bool power_of_two) {
  const at::Tensor values = float8_scale(at::stack(largest), format, power_of_two);
  return {at::stack({values, values.reciprocal()})};
}

Float8Matrix cast(const at::Tensor& matrix, const at::Tensor& scale, Float8Format format, Float8Sides sides) {
  const bool fits =
      scale.numel() == 1 || (scale.dim() == 2 && ((scale.size(0) == matrix.size(0) && scale.size(1) == 1) ||
                                                  (scale.size(0) == 1 && scale.size(1) == matrix.size(1))));
  TITAN_CHECK(matrix.is_floating_point() && matrix.dim() == 2 && scale.scalar_type() == at::kFloat &&
                  scale.device() == matrix.device() && fits,
              summary_of(matrix), summary_of(scale));
  const double most = largest_value(format);
  const at::Tensor data = matrix.to(at::kFloat).mul(scale).clamp_(-most, most).to(scalar_type(format));
  Float8Matrix result;
  if (sides != Float8Sides::transposed) result.data = data.contiguous();
  if (sides != Float8Sides::data) result.transposed = data.t().contiguous();
  return result;
}

}  // namespace

at::ScalarType scalar_type(Float8Format format) {
  return format == Float8Format::e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
}

double largest_value(Float8Format format) { return format == Float8Format::e4m3 ? 448 : 57344; }

at::Tensor float8_scale(const at::Tensor& amax, Float8Format format, bool power_of_two) {
  TITAN_CHECK(amax.is_floating_point(), summary_of(amax));
  const at::Tensor largest = amax.to(at::kDouble).clamp_min(kLeastAmax);
  const at::Tensor scale = (at::full_like(largest, largest_value(format)) / largest).to(at::kFloat);
  if (!power_of_two) return scale;
  // Clearing the mantissa would turn NaN into infinity.
  return at::where(scale.isnan(), scale, scale.view(at::kInt).bitwise_and(kExponentBits).view(at::kFloat));
}

Float8Scale Float8Scales::operator[](int64_t index) const { return {block[0][index], block[1][index]}; }

Float8Casts make_aten_float8_casts() { return {amax, amaxes, scales, cast}; }

}  // namespace titan
