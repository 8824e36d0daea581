#include "titan/optimize/gradient_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <numeric>
#include <vector>

#include "cpu_kernels.h"
#include "titan/base/error.h"

namespace titan {
namespace {

constexpr int64_t kBlock = 1 << 15;

at::Tensor squared(const at::Tensor& gradient) {
  if (gradient.is_cpu() && gradient.is_contiguous() && gradient.scalar_type() == at::kFloat) {
    return at::scalar_tensor(sum_of_squares(gradient), at::kDouble);
  }
  return gradient.to(at::kDouble).square_().sum();
}

}  // namespace

double sum_of_squares(const at::Tensor& tensor) {
  TITAN_CHECK(tensor.is_cpu() && tensor.is_contiguous() && tensor.scalar_type() == at::kFloat, tensor.dim());
  const int64_t numel = tensor.numel();
  const float* data = tensor.const_data_ptr<float>();
  std::vector<double> sums(static_cast<size_t>((numel + kBlock - 1) / kBlock));
  at::parallel_for(0, static_cast<int64_t>(sums.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t at = block * kBlock;
      sums[static_cast<size_t>(block)] = cpu_sum_of_squares(data + at, std::min(kBlock, numel - at));
    }
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

StepControl control_step(std::span<Parameter* const> parameters, double max_norm, const at::Tensor& loss) {
  std::vector<at::Tensor> squares;
  for (Parameter* parameter : parameters) {
    TITAN_CHECK(parameter->gradient_shard.defined(), parameter->name());
    squares.push_back(squared(parameter->gradient_shard));
  }
  StepControl control;
  control.norm = squares.empty() ? at::zeros({}, loss.options().dtype(at::kDouble)) : at::stack(squares).sum().sqrt_();
  const at::ScalarType factor_type = control.norm.is_cpu() ? at::kDouble : at::kFloat;
  control.clip = at::ones({}, control.norm.options().dtype(factor_type));
  if (max_norm > 0) {
    control.clip = (max_norm / (control.norm + 1e-6)).clamp_max_(1.0).to(factor_type);
  }
  control.skip = at::isfinite(control.norm + loss).logical_not_().to(at::kFloat);
  return control;
}

}  // namespace titan
