#include "titan/ops/swiglu.h"

#include <ATen/ATen.h>

#include "titan/ops/differentiable.h"

namespace titan {
namespace {

struct SwigluBackward : BackwardNode {
  at::Tensor gate;
  at::Tensor up;

  torch::autograd::variable_list backward(torch::autograd::variable_list gradients) override {
    const at::Tensor& dy = gradients[0];
    at::Tensor d_up = at::silu(gate).mul_(dy);
    at::Tensor d_gate = at::silu_backward(at::mul(dy, up), gate);
    gate.reset();
    up.reset();
    return {d_gate, d_up};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up, UnitContext& context) {
  const bool graph = wants_gradient({&gate, &up});
  BelowAutograd below;
  at::Tensor result = context.recorder.once(ResultKind::activation, 0, [&] { return at::silu(gate).mul_(up); });
  if (graph) {
    auto node = std::make_shared<SwigluBackward>();
    node->gate = gate.detach();
    node->up = up.detach();
    context.note_saved(gate);
    context.note_saved(up);
    connect(std::move(node), {&gate, &up}, {result});
  }
  return result;
}

}  // namespace titan
