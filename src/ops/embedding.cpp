#include "titan/ops/embedding.h"

#include <ATen/ATen.h>

#include "titan/ops/differentiable.h"

namespace titan {
namespace {

struct EmbeddingBackward : BackwardNode {
  Parameter* weight = nullptr;
  at::Tensor tokens;

  torch::autograd::variable_list backward(torch::autograd::variable_list gradients) override {
    if (weight->trainable()) {
      at::Tensor& gradient = weight->gradient();
      at::Tensor dy = gradients[0].to(gradient.scalar_type());
      at::Tensor rows = at::embedding_dense_backward(dy, tokens, gradient.size(0), /*padding_idx=*/-1, false);
      if (weight->gradient_written()) {
        gradient.add_(rows);
      } else {
        gradient.copy_(rows);
        weight->mark_gradient_written();
      }
    }
    return {at::Tensor()};
  }
};

}  // namespace

at::Tensor embedding(const at::Tensor& anchor, const at::Tensor& tokens, Parameter& weight, UnitContext& context) {
  const bool graph = wants_gradient({&anchor});
  BelowAutograd below;
  at::Tensor rows = at::embedding(weight.weight(), tokens);
  if (graph) {
    auto node = std::make_shared<EmbeddingBackward>();
    node->weight = &weight;
    node->tokens = tokens;
    context.note_saved(tokens);
    connect(std::move(node), {&anchor}, {rows});
  }
  return rows;
}

}  // namespace titan
