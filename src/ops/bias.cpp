#include "titan/ops/bias.h"

#include <ATen/ATen.h>

#include "tensor_checks.h"
#include "titan/base/error.h"
#include "titan/ops/differentiable.h"

namespace titan {
namespace {

struct BiasBackward : BackwardNode {
  Parameter* bias = nullptr;

  torch::autograd::variable_list backward(torch::autograd::variable_list gradients) override {
    if (gradients[0].defined() && bias->trainable()) {
      const at::Tensor rows = gradients[0].reshape({-1, bias->weight().numel()});
      bias->add_to_gradient(at::sum(rows, {0}, /*keepdim=*/false, at::kFloat));
    }
    return {gradients[0]};
  }
};

}  // namespace

at::Tensor add_bias(const at::Tensor& x, Parameter& bias, int ordinal, UnitContext& context) {
  TITAN_CHECK(same_kind(x, bias.weight()) && x.dim() >= 2 && x.size(-2) * x.size(-1) == bias.weight().numel(),
              bias.name(), summary_of(x), summary_of(bias.weight()));
  const bool graph = wants_gradient({&x});
  BelowAutograd below;
  at::Tensor sum;
  if (context.recorder.skips(ResultKind::linear, ordinal)) {
    sum = placeholder(x.sizes(), x.options());
  } else {
    const at::Tensor row = bias.weight().view({x.size(-2), x.size(-1)});
    const bool is_free = !context.recorder.keeps(ResultKind::linear, ordinal);
    sum = is_free ? x.detach().add_(row) : at::add(x, row);
  }
  if (graph) {
    auto node = std::make_shared<BiasBackward>();
    node->bias = &bias;
    connect(std::move(node), {&x}, {sum});
  }
  return sum;
}

}  // namespace titan
