#include "titan/ops/linear.h"

#include <ATen/ATen.h>

#include "titan/ops/differentiable.h"
#include "titan/ops/matrix_product.h"

namespace titan {
namespace {

at::Tensor as_matrix(const at::Tensor& tensor, int64_t columns) {
  return tensor.dim() == 2 && tensor.size(1) == columns ? tensor : tensor.reshape({-1, columns});
}

struct LinearBackward : BackwardNode {
  std::vector<Parameter*> weights;
  std::shared_ptr<const LinearProducts> products;
  UnitContext* context = nullptr;
  Operand x;
  std::vector<int64_t> input_shape;

  torch::autograd::variable_list backward(torch::autograd::variable_list gradients) override {
    at::Tensor dx;
    std::vector<WeightProduct> of_weights;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (!gradients[i].defined()) continue;
      Operand dy = products->quantise(as_matrix(gradients[i], weights[i]->weight().size(0)), *context);
      gradients[i].reset();
      if (task_should_compute_output(0)) products->input_gradient(dy, weights[i]->weight(), dx);
      if (weights[i]->trainable()) of_weights.push_back({weights[i], std::move(dy)});
    }
    if (!of_weights.empty()) submit(std::move(of_weights));
    x = {};
    return {dx.defined() ? dx.view(input_shape) : dx};
  }

 private:
  struct WeightProduct {
    Parameter* weight;
    Operand dy;
  };

  void submit(std::vector<WeightProduct> of_weights) {
    context->sink->submit([products = products, x = x, of_weights = std::move(of_weights)]() mutable {
      const Operand shared = products->for_weight_gradients(x, of_weights[0].weight->gradient());
      for (WeightProduct& of : of_weights) {
        products->weight_gradient(of.dy, shared, of.weight->gradient(), of.weight->gradient_written());
        of.weight->mark_gradient_written();
        of.dy = {};
      }
    });
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
  return round_weight_gradient_ ? x : Operand{x.data.to(gradient.scalar_type()), {}, {}};
}

void DenseProducts::weight_gradient(const Operand& dy, const Operand& x, at::Tensor gradient, bool accumulate) const {
  const bool same_dtype = dy.data.scalar_type() == gradient.scalar_type();
  if (same_dtype || !round_weight_gradient_) {
    transposed_product_into(gradient, dy.data.to(gradient.scalar_type()), x.data.to(gradient.scalar_type()),
                            accumulate);
  } else if (accumulate) {
    gradient.add_(at::mm(dy.data.t(), x.data));
  } else {
    gradient.copy_(at::mm(dy.data.t(), x.data));
  }
}

LinearGroup::LinearGroup(std::vector<Parameter*> weights, int first_ordinal,
                         std::shared_ptr<const LinearProducts> products, int64_t head_dim)
    : weights_(std::move(weights)),
      first_ordinal_(first_ordinal),
      products_(std::move(products)),
      head_dim_(head_dim) {}

std::vector<int64_t> LinearGroup::output_shape(const at::Tensor& x, const Parameter& weight) const {
  std::vector<int64_t> shape = x.sizes().vec();
  for (int64_t columns = weight.weight().size(1); columns > 1; shape.pop_back()) columns /= shape.back();
  const int64_t rows = weight.weight().size(0);
  if (head_dim_ > 0) {
    shape.insert(shape.end(), {rows / head_dim_, head_dim_});
  } else {
    shape.push_back(rows);
  }
  return shape;
}

std::vector<at::Tensor> LinearGroup::forward(const at::Tensor& x, UnitContext& context) const {
  const bool graph = wants_gradient({&x});
  BelowAutograd below;
  Operand operand = products_->quantise(as_matrix(x, weights_[0]->weight().size(1)), context);
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < weights_.size(); ++i) {
    int ordinal = first_ordinal_ + static_cast<int>(i);
    std::vector<int64_t> shape = output_shape(x, *weights_[i]);
    if (context.recorder.skips(ResultKind::linear, ordinal)) {
      outputs.push_back(placeholder(shape, x.options()));
    } else {
      auto product = [&] { return products_->forward(operand, weights_[i]->weight()).view(shape); };
      outputs.push_back(context.recorder.once(ResultKind::linear, ordinal, product));
    }
  }
  if (graph) {
    auto node = std::make_shared<LinearBackward>();
    node->weights = weights_;
    node->products = products_;
    node->context = &context;
    node->input_shape = x.sizes().vec();
    context.note_saved(operand.data);
    node->x = {operand.data.detach(), operand.transposed, operand.scale};
    connect(std::move(node), {&x}, outputs);
  }
  return outputs;
}

}  // namespace titan
