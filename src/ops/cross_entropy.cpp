#include "titan/ops/cross_entropy.h"

#include <ATen/ATen.h>

#include "fused_elementwise.h"
#include "matrix_product.h"
#include "tensor_checks.h"
#include "titan/base/error.h"
#include "titan/ops/differentiable.h"
#include "titan/ops/embedding.h"
#include "titan/ops/fused_kernels.h"
#include "titan/ops/linear.h"

namespace titan {
namespace {

struct HandOnBackward : BackwardNode {
  at::Tensor d_hidden;

  torch::autograd::variable_list backward(torch::autograd::variable_list) override { return {std::move(d_hidden)}; }
};

/// One chunk of rows: losses, and the gradient of this rank's logits.
RowLosses chunk_losses(const at::Tensor& hidden, const at::Tensor& labels, const at::Tensor& weight,
                       const Vocabulary& vocabulary, const CrossEntropyOptions& options, bool want_gradient,
                       const UnitContext& context) {
  const bool gathers = vocabulary.communicator && !options.tensor_parallel->loss_parallel;
  at::Tensor logits = product_with_transposed(hidden, weight);
  if (gathers) logits = vocabulary.gather(logits);
  if (gathers && context.loss_kernels) logits = logits.contiguous();
  const bool shares = vocabulary.communicator && !gathers;
  std::optional<RowLosses> fused =
      shares ? fused_parallel_row_losses(logits, labels, options.loss_scale, want_gradient, vocabulary,
                                         context.loss_kernels)
             : fused_row_losses(logits, labels, options.loss_scale, want_gradient, context.loss_kernels);
  if (fused) {
    if (gathers && want_gradient) fused->gradient = vocabulary.own(fused->gradient).contiguous();
    return *fused;
  }
  logits = logits.to(at::kFloat);  // after the gather, which sends half as much in bf16; the narrow ones are released
  if (shares) {
    return parallel_row_losses(std::move(logits), labels, options.loss_scale, want_gradient, vocabulary);
  }
  RowLosses losses = row_losses(std::move(logits), labels, options.loss_scale, want_gradient);
  if (gathers && want_gradient) losses.gradient = vocabulary.own(losses.gradient).contiguous();
  return losses;
}

/// `weight` [V, D] multiplies rows [..., D] of its own dtype.
void check_head(const at::Tensor& hidden, const Parameter& weight) {
  TITAN_CHECK(same_kind(hidden, weight.weight()) && hidden.dim() >= 1 && weight.weight().dim() == 2 &&
                  hidden.size(-1) == weight.weight().size(1),
              weight.name(), summary_of(hidden), summary_of(weight.weight()));
}

}  // namespace

void LossScale::multiply(at::Tensor& tensor) const {
  TITAN_CHECK(!at.defined() || (at.scalar_type() == at::kDouble && at.dim() == 0 && at.device() == tensor.device()),
              summary_of(at), summary_of(tensor));
  at.defined() ? tensor.mul_(at.to(tensor.scalar_type())) : tensor.mul_(value);
}

at::Tensor linear_cross_entropy(const at::Tensor& input, const at::Tensor& input_labels, Parameter& weight,
                                const CrossEntropyOptions& options, UnitContext& context) {
  check_head(input, weight);
  const SequenceParallel* exchange = options.tensor_parallel ? options.tensor_parallel->exchange.get() : nullptr;
  const int64_t ranks = exchange ? exchange->ranks() : 1;
  TITAN_CHECK(input_labels.scalar_type() == at::kLong && input_labels.device() == input.device() &&
                  input_labels.numel() * input.size(-1) == input.numel() * ranks,
              summary_of(input_labels), summary_of(input), ranks);
  TITAN_CHECK(options.chunks > 0, options.chunks);
  const bool graph = wants_gradient({&input});
  BelowAutograd below;
  const at::Tensor mine = input.detach().reshape({-1, input.size(-1)});
  const at::Tensor hidden = exchange ? gather_rows(*exchange, mine) : mine;
  const at::Tensor labels = input_labels.reshape({-1});
  const Vocabulary vocabulary(weight, options.tensor_parallel);
  const DenseProducts products(options.round_weight_gradient);
  at::Tensor loss = at::zeros({}, hidden.options().dtype(at::kDouble));
  at::Tensor d_hidden = graph ? at::empty(hidden.sizes(), hidden.options()) : at::Tensor();
  const int64_t rows = hidden.size(0);
  const int64_t chunk_rows = (rows + options.chunks - 1) / options.chunks;
  for (int64_t begin = 0; begin < rows; begin += chunk_rows) {
    const int64_t count = std::min(chunk_rows, rows - begin);
    at::Tensor x = hidden.narrow(0, begin, count);
    RowLosses losses =
        chunk_losses(x, labels.narrow(0, begin, count), weight.weight(), vocabulary, options, graph, context);
    loss.add_(losses.sum);
    if (!graph) continue;
    // Cast to the compute dtype for this product; cast back and released before the weight gradient allocates its
    // copies, so that the peak is not three matrices of logits.
    Operand dy{.data = std::move(losses.gradient), .is_gradient = true};
    dy.data = dy.data.to(hidden.scalar_type());
    at::Tensor d_x = d_hidden.narrow(0, begin, count);
    product_into(d_x, dy.data, weight.weight(), /*accumulate=*/false);
    if (weight.trainable()) {
      if (!options.round_weight_gradient && dy.data.is_cpu()) dy.data = dy.data.to(weight.gradient().scalar_type());
      products.weight_gradient(dy, {.data = x}, weight);
    }
  }
  options.loss_scale.multiply(loss);
  if (graph) {
    if (exchange) d_hidden = scatter_rows(*exchange, d_hidden);
    auto node = std::make_shared<HandOnBackward>();
    context.note_saved(d_hidden);
    node->d_hidden = d_hidden.view(input.sizes());
    connect(std::move(node), {&input}, {loss});
  }
  return loss;
}

at::Tensor linear_logits(const at::Tensor& hidden, const Parameter& weight, const TensorParallel* tensor_parallel,
                         const at::Tensor& rows) {
  check_head(hidden, weight);
  TITAN_CHECK(hidden.dim() == 2, summary_of(hidden));
  TITAN_CHECK(
      !rows.defined() || (rows.scalar_type() == at::kLong && rows.dim() == 1 && rows.device() == hidden.device()),
      summary_of(rows), summary_of(hidden));
  BelowAutograd below;
  at::Tensor read = tensor_parallel ? gather_rows(*tensor_parallel->exchange, hidden) : hidden;
  if (rows.defined()) read = read.index_select(0, rows);
  return Vocabulary(weight, tensor_parallel).gather(product_of_few_rows(read, weight.weight()));
}

}  // namespace titan
