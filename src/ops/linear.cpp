#include "titan/ops/linear.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "titan/base/error.h"
#include "titan/ops/differentiable.h"
#include "titan/ops/matrix_product.h"

namespace titan {
namespace {

at::Tensor as_matrix(const at::Tensor& tensor, int64_t columns) {
  return tensor.dim() == 2 && tensor.size(1) == columns ? tensor : tensor.reshape({-1, columns});
}

/// Rows [first, first + count) of an operand.
Operand rows_of(const Operand& operand, int64_t first, int64_t count) {
  if (count == operand.data.size(0)) return operand;
  return {operand.data.narrow(0, first, count),
          operand.transposed.defined() ? operand.transposed.narrow(1, first, count) : at::Tensor(), operand.scale};
}

/// Puts rows that arrive piece by piece where they belong; a piece that is everything is taken as it is.
void place_rows(at::Tensor& whole, int64_t first, const at::Tensor& rows, int64_t all) {
  if (rows.size(0) == all) {
    whole = rows;
    return;
  }
  if (!whole.defined()) whole = at::empty({all, rows.size(1)}, rows.options());
  whole.narrow(0, first, rows.size(0)).copy_(rows);
}

void add_weight_gradient(const LinearProducts& products, Parameter& weight, const Operand& dy, const Operand& x) {
  products.weight_gradient(dy, x, weight.gradient(), weight.gradient_written());
  weight.mark_gradient_written();
}

struct LinearBackward : BackwardNode {
  std::vector<Parameter*> weights;
  std::shared_ptr<const LinearProducts> products;
  std::shared_ptr<const TokenExchange> exchange;
  StreamSide side = StreamSide::input;
  UnitContext* context = nullptr;
  Operand x;
  std::vector<int64_t> input_shape;

  torch::autograd::variable_list backward(torch::autograd::variable_list gradients) override {
    at::Tensor dx = exchange && side == StreamSide::output ? from_shard(gradients[0]) : from_rows(gradients);
    x = {};
    return {dx.defined() ? dx.view(input_shape) : dx};
  }

  /// The gradients hold all tokens; the input holds all of them too, or only this rank's.
  at::Tensor from_rows(torch::autograd::variable_list& gradients) {
    std::vector<Operand> dys(weights.size());
    for (size_t i = 0; i < weights.size(); ++i) {
      if (gradients[i].defined())
        dys[i] = products->quantise(as_matrix(gradients[i], weights[i]->weight().size(0)), *context);
      gradients[i].reset();
    }
    at::Tensor dx;
    if (task_should_compute_output(0)) {
      if (exchange) {
        auto partial = [&](int64_t first, int64_t count) { return input_gradient(dys, first, count); };
        dx = exchange->scatter_sum(x.data.size(0) * exchange->ranks(), partial);
      } else {
        dx = input_gradient(dys, 0, x.data.size(0));
      }
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      if (!dys[i].data.defined() || !weights[i]->trainable()) dys[i] = {};
    }
    context->sink->submit([weights = weights, products = products, exchange = exchange, x = x, dys = std::move(dys)] {
      auto add = [&](int64_t first, const Operand& rows) {
        Operand shared;  // widened at most once for all weights
        for (size_t i = 0; i < weights.size(); ++i) {
          if (!dys[i].data.defined()) continue;
          if (!shared.data.defined()) shared = products->for_weight_gradients(rows, weights[i]->gradient());
          add_weight_gradient(*products, *weights[i], rows_of(dys[i], first, rows.data.size(0)), shared);
        }
      };
      if (!exchange) return add(0, x);
      exchange->gather(x.data, [&](int64_t first, const at::Tensor& rows) { add(first, {rows, {}, {}}); });
    });
    return dx;
  }

  at::Tensor input_gradient(const std::vector<Operand>& dys, int64_t first, int64_t count) {
    at::Tensor dx;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (dys[i].data.defined()) products->input_gradient(rows_of(dys[i], first, count), weights[i]->weight(), dx);
    }
    return dx;
  }

  /// The gradient holds this rank's tokens of the output stream; the input holds all.
  at::Tensor from_shard(const at::Tensor& shard) {
    at::Tensor dx, all_dy;
    const int64_t all = x.data.size(0);
    exchange->gather(shard.contiguous(), [&](int64_t first, const at::Tensor& rows) {
      at::Tensor part;
      products->input_gradient(products->quantise(rows, *context), weights[0]->weight(), part);
      place_rows(dx, first, part, all);
      place_rows(all_dy, first, rows, all);
    });
    if (weights[0]->trainable()) {
      Operand dy = products->quantise(all_dy, *context);
      context->sink->submit([weight = weights[0], products = products, x = x, dy = std::move(dy)] {
        add_weight_gradient(*products, *weight, dy, x);
      });
    }
    return dx;
  }
};

}  // namespace

Operand DenseProducts::quantise(const at::Tensor& activation, UnitContext&) const { return {activation, {}, {}}; }

at::Tensor DenseProducts::forward(const Operand& x, const at::Tensor& weight) const {
  return product_with_transposed(x.data, weight);
}

void DenseProducts::input_gradient(const Operand& dy, const at::Tensor& weight, at::Tensor& dx) const {
  at::Tensor share = product(dy.data, weight);
  dx = dx.defined() ? dx.add_(share) : share;
}

Operand DenseProducts::for_weight_gradients(const Operand& x, const at::Tensor& gradient) const {
  // GPUs multiply narrow operands into a wide result; the CPU has no such product.
  return round_weight_gradient_ || x.data.is_cuda() ? x : Operand{x.data.to(gradient.scalar_type()), {}, {}};
}

void DenseProducts::weight_gradient(const Operand& dy, const Operand& x, at::Tensor gradient, bool accumulate) const {
  const bool same_dtype = dy.data.scalar_type() == gradient.scalar_type();
  if (!same_dtype && !round_weight_gradient_ && dy.data.is_cuda()) {
    wide_transposed_product_into(gradient, dy.data, x.data, accumulate);
  } else if (same_dtype || !round_weight_gradient_) {
    transposed_product_into(gradient, dy.data.to(gradient.scalar_type()), x.data.to(gradient.scalar_type()),
                            accumulate);
  } else if (accumulate) {
    gradient.add_(at::mm(dy.data.t(), x.data));
  } else {
    gradient.copy_(at::mm(dy.data.t(), x.data));
  }
}

LinearGroup::LinearGroup(std::vector<Parameter*> weights, int first_ordinal,
                         std::shared_ptr<const LinearProducts> products, StreamSide side,
                         std::shared_ptr<const TokenExchange> exchange)
    : weights_(std::move(weights)),
      first_ordinal_(first_ordinal),
      products_(std::move(products)),
      side_(side),
      exchange_(std::move(exchange)) {
  TITAN_CHECK(side == StreamSide::input || weights_.size() == 1, weights_.size());
}

std::vector<at::Tensor> LinearGroup::forward(const at::Tensor& input, UnitContext& context,
                                             const std::optional<HeadShape>& heads) const {
  const bool graph = wants_gradient({&input});
  BelowAutograd below;
  const at::Tensor x = as_matrix(input, weights_[0]->weight().size(1));
  std::vector<at::Tensor> outputs = products(x, context);
  if (heads) {
    for (at::Tensor& output : outputs) {
      output = output.view({heads->samples, heads->length, output.size(1) / heads->head_dim, heads->head_dim});
    }
  }
  if (graph) {
    auto node = std::make_shared<LinearBackward>();
    node->weights = weights_;
    node->products = products_;
    node->exchange = exchange_;
    node->side = side_;
    node->context = &context;
    context.note_saved(x);
    node->x = {x.detach(), {}, {}};
    node->input_shape = input.sizes().vec();
    connect(std::move(node), {&input}, outputs);
  }
  return outputs;
}

/// The outputs, as far as the recompute policy wants them computed; gathered at most once.
std::vector<at::Tensor> LinearGroup::products(const at::Tensor& x, UnitContext& context) const {
  std::vector<bool> wanted(weights_.size());
  for (size_t i = 0; i < weights_.size(); ++i) {
    const int ordinal = first_ordinal_ + static_cast<int>(i);
    const bool handed_out = context.replay() && context.recorder.keeps(ResultKind::linear, ordinal);
    wanted[i] = !handed_out && !context.recorder.skips(ResultKind::linear, ordinal);
  }
  const bool scatters = exchange_ && side_ == StreamSide::output;
  std::vector<at::Tensor> computed(weights_.size());
  if (scatters && wanted[0]) computed[0] = scattered_product(x, context);
  if (!scatters) computed = gathered_products(x, wanted, context);
  const int64_t ranks = exchange_ ? exchange_->ranks() : 1;
  const int64_t rows = scatters ? x.size(0) / ranks : x.size(0) * ranks;
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < weights_.size(); ++i) {
    const int ordinal = first_ordinal_ + static_cast<int>(i);
    if (context.recorder.skips(ResultKind::linear, ordinal)) {
      outputs.push_back(placeholder({rows, weights_[i]->weight().size(0)}, x.options()));
    } else {
      outputs.push_back(context.recorder.once(ResultKind::linear, ordinal, [&] { return computed[i]; }));
    }
  }
  return outputs;
}

std::vector<at::Tensor> LinearGroup::gathered_products(const at::Tensor& x, const std::vector<bool>& wanted,
                                                       UnitContext& context) const {
  std::vector<at::Tensor> outputs(weights_.size());
  if (std::find(wanted.begin(), wanted.end(), true) == wanted.end()) return outputs;
  const int64_t all = x.size(0) * (exchange_ ? exchange_->ranks() : 1);
  auto multiply = [&](int64_t first, const at::Tensor& rows) {
    const Operand operand = products_->quantise(rows, context);
    for (size_t i = 0; i < weights_.size(); ++i) {
      if (wanted[i]) place_rows(outputs[i], first, products_->forward(operand, weights_[i]->weight()), all);
    }
  };
  if (exchange_) {
    exchange_->gather(x, multiply);
  } else {
    multiply(0, x);
  }
  return outputs;
}

at::Tensor LinearGroup::scattered_product(const at::Tensor& x, UnitContext& context) const {
  const Operand operand = products_->quantise(x, context);
  auto partial = [&](int64_t first, int64_t count) {
    return products_->forward(rows_of(operand, first, count), weights_[0]->weight());
  };
  return exchange_->scatter_sum(x.size(0), partial);
}

}  // namespace titan
