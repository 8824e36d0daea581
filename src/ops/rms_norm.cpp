#include "rms_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "cpu_rms_norm.h"
#include "tensor_data.h"

namespace titan {
namespace {

// Rows whose weight gradient is summed before the blocks' sums are added: fixed, so threads do not change the bits.
constexpr int64_t kBlockRows = 128;

bool has_cpu_kernel(const at::Tensor& x, const at::Tensor& weight) {
  const at::ScalarType type = x.scalar_type();
  return x.is_cpu() && x.is_contiguous() && weight.is_contiguous() && weight.scalar_type() == type &&
         (type == at::kFloat || type == at::kBFloat16);
}

RmsNormShape shape_of(const at::Tensor& x) { return {x.numel() / x.size(-1), x.size(-1)}; }

template <class T>
RmsNormResult forward_cpu(const at::Tensor& x, const at::Tensor& weight, double epsilon, bool fused) {
  const RmsNormShape shape = shape_of(x);
  std::vector<int64_t> statistics = x.sizes().vec();
  statistics.back() = 1;
  RmsNormResult result{at::empty(x.sizes(), x.options()), at::empty(statistics, x.options().dtype(at::kFloat))};
  T* normed = static_cast<T*>(result.normed.mutable_data_ptr());
  float* scale = result.scale.mutable_data_ptr<float>();
  at::parallel_for(0, shape.rows, 16, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * shape.dim;
    cpu_rms_norm(normed + at, scale + begin, values<T>(x) + at, values<T>(weight), {end - begin, shape.dim},
                 static_cast<float>(epsilon), fused);
  });
  return result;
}

template <class T>
RmsNormGradients backward_cpu(const at::Tensor& dy, const at::Tensor& d_residual, const at::Tensor& x,
                              const at::Tensor& scale, const at::Tensor& weight) {
  const RmsNormShape shape = shape_of(x);
  const int64_t blocks = (shape.rows + kBlockRows - 1) / kBlockRows;
  at::Tensor dx = at::empty(x.sizes(), x.options());
  at::Tensor sums = at::zeros({blocks, shape.dim}, x.options().dtype(at::kFloat));
  const T* residual = d_residual.defined() ? values<T>(d_residual) : nullptr;
  at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t row = block * kBlockRows;
      const int64_t at = row * shape.dim;
      cpu_rms_norm_backward(static_cast<T*>(dx.mutable_data_ptr()) + at,
                            sums.mutable_data_ptr<float>() + block * shape.dim, values<T>(dy) + at,
                            residual ? residual + at : nullptr, values<T>(x) + at, values<float>(scale) + row,
                            values<T>(weight), {std::min(kBlockRows, shape.rows - row), shape.dim});
    }
  });
  return {dx, sums.sum(0)};
}

}  // namespace

RmsNormResult rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, bool fused) {
  if (has_cpu_kernel(x, weight)) {
    return x.scalar_type() == at::kFloat ? forward_cpu<float>(x, weight, epsilon, fused)
                                         : forward_cpu<BFloat16Bits>(x, weight, epsilon, fused);
  }
  at::Tensor x32 = x.to(at::kFloat);
  at::Tensor scale = at::mean(x32 * x32, -1, /*keepdim=*/true).add_(epsilon).rsqrt_();
  at::Tensor normed = x32 * scale;
  if (fused) return {normed.mul_(weight.to(at::kFloat)).to(x.scalar_type()), scale};
  return {normed.to(x.scalar_type()).mul_(weight), scale};
}

RmsNormGradients rms_norm_backward(const at::Tensor& dy, const at::Tensor& d_residual, const at::Tensor& x,
                                   const at::Tensor& scale, const at::Tensor& weight) {
  if (has_cpu_kernel(x, weight)) {
    const at::Tensor d_normed = dy.contiguous();
    const at::Tensor residual = d_residual.defined() ? d_residual.contiguous() : d_residual;
    return x.scalar_type() == at::kFloat ? backward_cpu<float>(d_normed, residual, x, scale, weight)
                                         : backward_cpu<BFloat16Bits>(d_normed, residual, x, scale, weight);
  }
  at::Tensor dy32 = dy.to(at::kFloat);
  at::Tensor unit = x.to(at::kFloat) * scale;
  at::Tensor weight_gradient = (dy32 * unit).reshape({-1, x.size(-1)}).sum(0);
  at::Tensor g = dy32 * weight.to(at::kFloat);
  at::Tensor projection = at::mean(g * unit, -1, /*keepdim=*/true);
  at::Tensor dx = g.sub_(unit.mul_(projection)).mul_(scale);
  if (d_residual.defined()) dx.add_(d_residual);
  return {dx.to(x.scalar_type()), weight_gradient};
}

}  // namespace titan
