#include "titan/ops/embedding.h"

#include <ATen/ATen.h>

#include "titan/ops/differentiable.h"

namespace titan {
namespace {

/// The rows of the vocabulary that this rank holds, and which tokens ask for one of them.
struct OwnWords {
  at::Tensor index;  // row of the shard; 0 for words of other ranks
  at::Tensor mine;   // bool [N, 1]; undefined when every word is here
};

OwnWords own_words(const at::Tensor& tokens, const Parameter& weight) {
  const int64_t first = weight.unsharded_box().offset[0];
  const int64_t count = weight.unsharded_box().extent[0];
  if (count == weight.spec().shape[0]) return {tokens, {}};
  at::Tensor index = tokens - first;
  at::Tensor mine = index.ge(0).logical_and_(index.lt(count));
  return {index.mul_(mine), mine.unsqueeze(1)};
}

struct EmbeddingBackward : BackwardNode {
  Parameter* weight = nullptr;
  const TokenExchange* exchange = nullptr;
  at::Tensor tokens;

  torch::autograd::variable_list backward(torch::autograd::variable_list gradients) override {
    if (!weight->trainable()) return {at::Tensor()};
    at::Tensor& gradient = weight->gradient();
    at::Tensor dy = exchange ? gather_rows(*exchange, gradients[0]) : gradients[0];
    dy = dy.to(gradient.scalar_type());
    const OwnWords words = own_words(tokens, *weight);
    if (words.mine.defined()) dy = dy * words.mine;
    at::Tensor rows = gradient.size(0) == 0
                          ? at::zeros_like(gradient)
                          : at::embedding_dense_backward(dy, words.index, gradient.size(0), /*padding_idx=*/-1, false);
    if (weight->gradient_written()) {
      gradient.add_(rows);
    } else {
      gradient.copy_(rows);
      weight->mark_gradient_written();
    }
    return {at::Tensor()};
  }
};

at::Tensor look_up(const at::Tensor& tokens, const Parameter& weight, const TokenExchange* exchange) {
  const OwnWords words = own_words(tokens, weight);
  if (weight.weight().size(0) == 0) {
    at::Tensor none = at::zeros({tokens.size(0), weight.weight().size(1)}, weight.weight().options());
    return exchange ? scatter_rows(*exchange, none) : none;
  }
  at::Tensor rows = at::embedding(weight.weight(), words.index);
  if (words.mine.defined()) rows.mul_(words.mine);
  return exchange ? scatter_rows(*exchange, rows) : rows;
}

}  // namespace

at::Tensor embedding(const at::Tensor& anchor, const at::Tensor& tokens, Parameter& weight,
                     const TokenExchange* exchange, UnitContext& context) {
  const bool graph = wants_gradient({&anchor});
  BelowAutograd below;
  const at::Tensor flat = tokens.reshape({-1});
  at::Tensor rows = look_up(flat, weight, exchange);
  if (graph) {
    auto node = std::make_shared<EmbeddingBackward>();
    node->weight = &weight;
    node->exchange = exchange;
    node->tokens = flat;
    context.note_saved(flat);
    connect(std::move(node), {&anchor}, {rows});
  }
  return rows;
}

}  // namespace titan
