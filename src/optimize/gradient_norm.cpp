#include "titan/optimize/gradient_norm.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>
#include <vector>

#include "neighbours.h"
#include "titan/base/error.h"
#include "titan/optimize/exact_sum.h"

namespace titan {

at::Tensor local_squares(std::span<Parameter* const> parameters, const at::Device& device) {
  std::vector<at::Tensor> gradients;
  for (Parameter* parameter : parameters) {
    TITAN_CHECK(parameter->gradient_shard.defined(), parameter->name());
    gradients.push_back(parameter->gradient_shard);
  }
  return exact_squares(joined(std::move(gradients)), device);  // exact: however they are cut and ordered
}

namespace {

/// The root that IEEE 754 asks for. CUDA's is that one; ATen's on a CPU is a vector library's, which is off by one unit
/// in the last place for one number in a hundred.
at::Tensor exact_root(at::Tensor value) {
  if (!value.is_cpu()) return value.sqrt_();
  double& number = *value.mutable_data_ptr<double>();
  number = std::sqrt(number);
  return value;
}

}  // namespace

StepControl control_from(const at::Tensor& squares, double max_norm, const at::Tensor& loss) {
  StepControl control;
  control.norm = exact_root(exact_value_of(squares));
  const at::ScalarType factor_type = control.norm.is_cpu() ? at::kDouble : at::kFloat;
  control.clip = at::ones({}, control.norm.options().dtype(factor_type));
  if (max_norm > 0) {
    control.clip = (max_norm / (control.norm + 1e-6)).clamp_max_(1.0).to(factor_type);
  }
  control.skip = at::isfinite(control.norm + loss).logical_not_().to(at::kFloat);
  return control;
}

StepControl control_step(std::span<Parameter* const> parameters, double max_norm, const at::Tensor& loss) {
  return control_from(local_squares(parameters, loss.device()), max_norm, loss);
}

}  // namespace titan
