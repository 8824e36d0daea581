#include "titan/ops/parameter.h"

#include "tensor_checks.h"
#include "titan/base/error.h"

namespace titan {

Parameter::Parameter(ParameterSpec spec)
    : spec_(std::move(spec)),
      layout_(spec_.shape),
      shard_box_(layout_.first_box()),
      unsharded_box_(layout_.first_box()) {}

void Parameter::place(TensorLayout layout, Box shard_box, Box unsharded_box, bool owns_shard) {
  TITAN_CHECK(layout.global_shape() == spec_.shape, name());
  layout_ = std::move(layout);
  shard_box_ = std::move(shard_box);
  unsharded_box_ = std::move(unsharded_box);
  owns_shard_ = owns_shard;
}

const at::Tensor& Parameter::weight() const {
  TITAN_CHECK(weight_.defined() && "the weight is unsharded", name());
  return weight_;
}

at::Tensor& Parameter::gradient() {
  TITAN_CHECK(gradient_.defined() && "the gradient has storage", name());
  return gradient_;
}

void Parameter::mark_gradient_written() {
  const bool is_narrow = gradient_written_ && gradient_.element_size() < 4;
  TITAN_CHECK(!is_narrow && "a gradient in bf16 is written once in a step", name(), summary_of(gradient_));
  gradient_written_ = true;
}

void Parameter::add_to_gradient(const at::Tensor& share) {
  TITAN_CHECK(share.defined() && share.sizes() == gradient().sizes() && share.device() == gradient().device(), name(),
              summary_of(share), summary_of(gradient()));
  gradient_written_ ? gradient().add_(share) : gradient().copy_(share);
  mark_gradient_written();
}

void Parameter::set_gradient(at::Tensor unsharded) {
  TITAN_CHECK(!unsharded.defined() || unsharded.sizes() == at::IntArrayRef(unsharded_box_.extent), name(),
              summary_of(unsharded));
  gradient_ = std::move(unsharded);
  gradient_written_ = false;
}

}  // namespace titan
