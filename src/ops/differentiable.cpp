#include "titan/ops/differentiable.h"

#include <torch/csrc/autograd/functions/utils.h>

namespace titan {

torch::autograd::variable_list BackwardNode::apply(torch::autograd::variable_list&& gradients) {
  BelowAutograd below;
  return backward(std::move(gradients));
}

bool wants_gradient(std::initializer_list<const at::Tensor*> inputs) {
  if (!at::GradMode::is_enabled()) return false;
  for (const at::Tensor* input : inputs) {
    if (input->defined() && input->requires_grad()) return true;
  }
  return false;
}

void connect(std::shared_ptr<BackwardNode> node, std::initializer_list<const at::Tensor*> inputs,
             at::ArrayRef<at::Tensor> outputs) {
  torch::autograd::edge_list edges;
  edges.reserve(inputs.size());
  for (const at::Tensor* input : inputs) {
    edges.push_back(input->defined() ? torch::autograd::impl::gradient_edge(*input) : torch::autograd::Edge());
  }
  node->set_next_edges(std::move(edges));
  const std::shared_ptr<torch::autograd::Node> history = std::move(node);
  for (const at::Tensor& output : outputs) torch::autograd::set_history(output, history);
}

}  // namespace titan
