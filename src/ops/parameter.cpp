#include "titan/ops/parameter.h"

#include <functional>
#include <numeric>

#include "titan/base/error.h"

namespace titan {

int64_t ParameterSpec::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

Parameter::Parameter(ParameterSpec spec, TensorLayout layout) : spec_(std::move(spec)), layout_(std::move(layout)) {}

const at::Tensor& Parameter::weight() const {
  TITAN_CHECK(weight_.defined() && "the weight is acquired", name());
  return weight_;
}

at::Tensor& Parameter::gradient() {
  TITAN_CHECK(gradient_.defined() && "the gradient has storage", name());
  return gradient_;
}

void Parameter::set_gradient(at::Tensor unsharded) {
  gradient_ = std::move(unsharded);
  gradient_written_ = false;
}

at::Tensor Parameter::rows_from(const at::Tensor& tensor, int64_t rows) {
  if (tensor.size(0) == rows) return tensor;
  return tensor.as_strided({rows, tensor.size(1)}, {tensor.size(1), 1}, tensor.storage_offset());
}

}  // namespace titan
