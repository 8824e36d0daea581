#include "titan/ops/cross_entropy.h"

#include <ATen/ATen.h>

#include "titan/data/batch_stream.h"
#include "titan/ops/differentiable.h"
#include "titan/ops/linear.h"
#include "titan/ops/matrix_product.h"

namespace titan {
namespace {

struct HandOnBackward : BackwardNode {
  at::Tensor d_hidden;

  torch::autograd::variable_list backward(torch::autograd::variable_list) override { return {std::move(d_hidden)}; }
};

/// One chunk: adds its token losses (unscaled) to `loss` and, when wanted, returns scale · (softmax − one-hot) in fp32.
at::Tensor chunk_loss(const at::Tensor& hidden, const at::Tensor& labels, const at::Tensor& weight, double scale,
                      bool want_gradient, at::Tensor& loss) {
  at::Tensor logits = at::mm(hidden, weight.t()).to(at::kFloat);  // narrow ones are gone before the next are made
  at::Tensor log_probability = at::_log_softmax(logits, 1, /*half_to_float=*/false);
  logits.reset();
  at::Tensor valid = labels.ne(kIgnoredLabel);
  at::Tensor target = labels.clamp_min(0).unsqueeze(1);
  at::Tensor picked = log_probability.gather(1, target).squeeze(1);
  loss.sub_(at::where(valid, picked, at::zeros({}, picked.options())).sum(at::kDouble));
  if (!want_gradient) return {};
  at::Tensor gradient = log_probability.exp_();
  gradient.scatter_add_(1, target, at::full({1, 1}, -1.0, gradient.options()).expand(target.sizes()));
  return gradient.mul_(valid.to(at::kFloat).mul_(scale).unsqueeze(1));
}

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& input, const at::Tensor& input_labels, Parameter& weight,
                                const CrossEntropyOptions& options, UnitContext& context) {
  const bool graph = wants_gradient({&input});
  BelowAutograd below;
  const at::Tensor hidden = input.reshape({-1, input.size(-1)});
  const at::Tensor labels = input_labels.reshape({-1});
  const DenseProducts products(options.round_weight_gradient);
  at::Tensor loss = at::zeros({}, hidden.options().dtype(at::kDouble));
  at::Tensor d_hidden = graph ? at::empty(hidden.sizes(), hidden.options()) : at::Tensor();
  const int64_t rows = hidden.size(0);
  const int64_t chunk_rows = (rows + options.chunks - 1) / options.chunks;
  for (int64_t begin = 0; begin < rows; begin += chunk_rows) {
    const int64_t count = std::min(chunk_rows, rows - begin);
    at::Tensor x = hidden.narrow(0, begin, count);
    at::Tensor d_logits =
        chunk_loss(x, labels.narrow(0, begin, count), weight.weight(), options.loss_scale, graph, loss);
    if (!graph) continue;
    // Narrow for this product; wide again, and the narrow ones gone, before the weight gradient makes copies of its
    // own.
    d_logits = d_logits.to(hidden.scalar_type());
    Operand dy{std::move(d_logits), {}, {}};
    d_hidden.narrow(0, begin, count).copy_(product(dy.data, weight.weight()));
    if (weight.trainable()) {
      if (!options.round_weight_gradient) dy.data = dy.data.to(weight.gradient().scalar_type());
      products.weight_gradient(dy, {x, {}, {}}, weight.gradient(), weight.gradient_written());
      weight.mark_gradient_written();
    }
  }
  loss.mul_(options.loss_scale);
  if (graph) {
    auto node = std::make_shared<HandOnBackward>();
    context.note_saved(d_hidden);
    node->d_hidden = d_hidden.view(input.sizes());
    connect(std::move(node), {&input}, {loss});
  }
  return loss;
}

}  // namespace titan
