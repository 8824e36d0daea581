#include "titan/ops/linear.h"

#include <ATen/ATen.h>
#include <ATen/ops/mm.h>
#include <algorithm>

#include "matrix_product.h"
#include "tensor_checks.h"
#include "titan/base/error.h"
#include "titan/ops/differentiable.h"

namespace titan {
namespace {

/// True if the last dimensions of `tensor` span `columns` numbers: without this, [2, 6] would be read as [3, 4].
bool has_columns(const at::Tensor& tensor, int64_t columns) {
  int64_t spanned = 1;
  int64_t d = tensor.dim();
  while (d > 0 && spanned < columns) spanned *= tensor.size(--d);
  return spanned == columns;
}

at::Tensor as_matrix(const at::Tensor& tensor, int64_t columns) {
  return tensor.dim() == 2 && tensor.size(1) == columns ? tensor : tensor.reshape({-1, columns});
}

/// Rows [first, first + count) of an operand.
Operand rows_of(const Operand& operand, int64_t first, int64_t count) {
  const int64_t all = operand.rows();
  if (count == all) return operand;
  auto narrowed = [&](const at::Tensor& tensor, int64_t dimension) {
    return tensor.defined() ? tensor.narrow(dimension, first, count) : tensor;
  };
  Float8Scale scale = operand.scale;
  if (scale.defined() && scale.value.dim() == 2) scale = {narrowed(scale.value, 0), narrowed(scale.inverse, 0)};
  return {narrowed(operand.data, 0),
          std::move(scale),
          operand.is_gradient,
          operand.type,
          narrowed(operand.quantised, 0),
          narrowed(operand.transposed, 1),
          operand.is_kept,
          operand.generates};
}

/// Stores rows that arrive in pieces; a single piece with all rows is taken without a copy.
void place_rows(at::Tensor& whole, int64_t first, const at::Tensor& rows, int64_t all) {
  if (rows.size(0) == all) {
    whole = rows;
    return;
  }
  if (!whole.defined()) whole = at::empty({all, rows.size(1)}, rows.options());
  whole.narrow(0, first, rows.size(0)).copy_(rows);
}

bool is_narrow(const at::Tensor& gradient) { return gradient.element_size() < 4; }

/// The dtype in which the products of a CPU are summed up for this gradient.
at::ScalarType sum_type(const at::Tensor& gradient) {
  return is_narrow(gradient) ? at::kFloat : gradient.scalar_type();
}

std::vector<at::Tensor> matrices_of(const std::vector<Parameter*>& weights) {
  std::vector<at::Tensor> matrices;
  for (const Parameter* weight : weights) matrices.push_back(weight->weight());
  return matrices;
}

/// One matrix over the gradients of `weights`; undefined if some are written and others not, or they are not adjacent.
at::Tensor joined_gradients(const std::vector<Parameter*>& weights) {
  std::vector<at::Tensor> gradients;
  for (Parameter* weight : weights) {
    if (weight->gradient_written() != weights[0]->gradient_written()) return {};
    gradients.push_back(weight->gradient());
  }
  return joined_rows(gradients);
}

/// Columns [first, first + count) of a dense operand.
Operand columns_of(const Operand& operand, int64_t first, int64_t count) {
  return {.data = operand.data.narrow(1, first, count), .is_gradient = operand.is_gradient};
}

/// Weights that one product multiplies, with the gradient of their outputs: one weight, or several as one matrix.
struct Part {
  std::vector<Parameter*> weights;
  Operand dy;               // [tokens, Σ rows]
  at::Tensor columns = {};  // of the single weight, if forward kept them
  at::Tensor matrix = {};   // of several
};

struct LinearBackward : BackwardNode {
  std::vector<Parameter*> weights;
  std::shared_ptr<const LinearProducts> products;
  std::shared_ptr<const SequenceParallel> exchange;
  std::shared_ptr<ColumnGradients> joined;  // null: one product per weight
  LinearSplit side = LinearSplit::input;
  UnitContext* context = nullptr;
  Operand x;                        // data with a scale if forward computed one; or only its transposed float8 copy
  std::vector<at::Tensor> columns;  // of the weights, if forward kept them
  std::vector<int64_t> input_shape;

  torch::autograd::variable_list backward(torch::autograd::variable_list gradients) override {
    at::Tensor dx = exchange && side == LinearSplit::output ? from_shard(gradients[0]) : from_rows(gradients);
    x = {};
    columns.clear();
    return {dx.defined() ? dx.view(input_shape) : dx};
  }

  /// The gradients hold all tokens; the input holds all tokens, or only this rank's.
  at::Tensor from_rows(torch::autograd::variable_list& gradients) {
    std::vector<Part> parts = parts_of(gradients);
    at::Tensor dx;
    if (task_should_compute_output(0)) {
      if (exchange) {
        auto partial = [&](int64_t first, int64_t count) { return input_gradient(parts, first, count); };
        dx = exchange->scatter_sum(x.rows() * exchange->ranks(), partial);
      } else {
        dx = input_gradient(parts, 0, x.rows());
      }
    }
    std::erase_if(parts, [](const Part& part) { return !part.weights[0]->trainable(); });
    if (!parts.empty()) submit_weight_gradients(std::move(parts));
    return dx;
  }

  std::vector<Part> parts_of(torch::autograd::variable_list& gradients) {
    if (joined) {
      if (std::optional<Part> all = joined_part(gradients)) return {*std::move(all)};
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      if (gradients[i].defined()) gradients[i] = as_matrix(gradients[i], weights[i]->weight().size(0));
    }
    std::vector<Operand> dys = products->prepare_gradients(std::move(gradients), weights, *context);
    std::vector<Part> parts;
    for (size_t i = 0; i < dys.size(); ++i) {
      if (!dys[i].defined()) continue;
      parts.push_back({{weights[i]}, products->ready(std::move(dys[i]), {weights[i]}), columns[i]});
    }
    return parts;
  }

  /// None if an output has no gradient, or only some of the weights are trained.
  std::optional<Part> joined_part(const torch::autograd::variable_list& gradients) const {
    const at::Tensor matrix = joined_rows(matrices_of(weights));
    for (size_t i = 0; i < weights.size(); ++i) {
      if (!gradients[i].defined() || weights[i]->trainable() != weights[0]->trainable()) return std::nullopt;
    }
    if (!matrix.defined()) return std::nullopt;
    return Part{weights, {.data = joined->complete(gradients), .is_gradient = true}, {}, matrix};
  }

  void submit_weight_gradients(std::vector<Part> parts) {
    std::vector<Parameter*> trained;
    for (const Part& part : parts) trained.insert(trained.end(), part.weights.begin(), part.weights.end());
    const Operand mine = x.data.defined() ? products->prepare(x.data, weights, x.scale, *context) : x;
    context->sink->submit([parts = std::move(parts), trained = std::move(trained), mine, products = products,
                           exchange = exchange, all = weights] {
      auto add = [&](int64_t first, const Operand& rows) {
        const Operand shared = products->for_weight_gradients(rows, trained);
        for (const Part& part : parts) {
          add_weight_gradient(*products, part, rows_of(part.dy, first, rows.rows()), shared);
        }
      };
      if (!exchange) return add(0, mine);
      exchange->gather(products->message(mine, all),
                       [&](int64_t first, const at::Tensor& rows) { add(first, products->received(rows, mine, all)); });
    });
  }

  static void add_weight_gradient(const LinearProducts& products, const Part& part, const Operand& dy,
                                  const Operand& input) {
    if (part.weights.size() == 1) return products.weight_gradient(dy, input, *part.weights[0]);
    const at::Tensor gradient = joined_gradients(part.weights);
    if (gradient.defined()) {
      products.dense()->weight_gradient(dy, input, gradient, part.weights[0]->gradient_written());
      for (Parameter* weight : part.weights) weight->mark_gradient_written();
      return;
    }
    int64_t first = 0;
    for (Parameter* weight : part.weights) {
      const int64_t count = weight->gradient().size(0);
      products.weight_gradient(columns_of(dy, first, count), input, *weight);
      first += count;
    }
  }

  at::Tensor input_gradient(const std::vector<Part>& parts, int64_t first, int64_t count) const {
    at::Tensor dx;
    for (const Part& part : parts) {
      const Operand dy = rows_of(part.dy, first, count);
      if (part.matrix.defined()) {
        products->dense()->input_gradient(dy, part.matrix, dx);
      } else {
        products->input_gradient(dy, *part.weights[0], part.columns, dx);
      }
    }
    return dx;
  }

  /// The gradient holds this rank's tokens of the output stream; the input holds all.
  at::Tensor from_shard(const at::Tensor& shard) {
    at::Tensor dx, all_rows;
    const int64_t all = x.rows();
    const Operand mine = products->prepare_gradients({shard.contiguous()}, weights, *context)[0];
    exchange->gather(products->message(mine, weights), [&](int64_t first, const at::Tensor& rows) {
      at::Tensor part;
      const Operand dy = products->ready(products->received(rows, mine, weights), weights);
      products->input_gradient(dy, *weights[0], columns[0], part);
      place_rows(dx, first, part, all);
      place_rows(all_rows, first, rows, all);
    });
    if (weights[0]->trainable()) {
      Operand dy = products->received(all_rows, mine, weights);
      Operand input = products->prepare(x.data, weights, x.scale, *context);
      context->sink->submit([weights = weights, products = products, input = std::move(input), dy = std::move(dy)] {
        products->weight_gradient(dy, products->for_weight_gradients(input, weights), *weights[0]);
      });
    }
    return dx;
  }
};

}  // namespace

Operand DenseProducts::prepare(const at::Tensor& input, const Weights&, const Float8Scale&, UnitContext&) const {
  return {.data = input};
}

std::vector<Operand> DenseProducts::prepare_gradients(std::vector<at::Tensor> gradients, const Weights&,
                                                      UnitContext&) const {
  std::vector<Operand> operands;
  for (at::Tensor& gradient : gradients) operands.push_back({.data = std::move(gradient), .is_gradient = true});
  return operands;
}

at::Tensor DenseProducts::message(const Operand& operand, const Weights&) const { return operand.data; }

Operand DenseProducts::received(const at::Tensor& rows, const Operand& mine, const Weights&) const {
  return {.data = rows, .is_gradient = mine.is_gradient, .generates = mine.generates};
}

Operand DenseProducts::ready(Operand operand, const Weights&) const { return operand; }

at::Tensor DenseProducts::forward(const Operand& x, const Parameter& weight, at::Tensor*) const {
  return forward(x, weight.weight());
}

at::Tensor DenseProducts::forward(const Operand& x, const at::Tensor& matrix) const {
  return (x.generates ? product_of_few_rows : product_with_transposed)(x.data, matrix);
}

void DenseProducts::input_gradient(const Operand& dy, const Parameter& weight, const at::Tensor&,
                                   at::Tensor& dx) const {
  input_gradient(dy, weight.weight(), dx);
}

void DenseProducts::input_gradient(const Operand& dy, const at::Tensor& matrix, at::Tensor& dx) const {
  if (dx.defined()) {
    product_into(dx, dy.data, matrix, /*accumulate=*/true);
  } else {
    dx = product(dy.data, matrix);
  }
}

Operand DenseProducts::for_weight_gradients(const Operand& x, const Weights& weights) const {
  // GPUs multiply low-precision operands into an fp32 result; the CPU cannot.
  if (round_weight_gradient_ || x.data.is_cuda()) return x;
  return {.data = x.data.to(sum_type(weights[0]->gradient()))};
}

void DenseProducts::weight_gradient(const Operand& dy, const Operand& x, Parameter& weight) const {
  weight_gradient(dy, x, weight.gradient(), weight.gradient_written());
  weight.mark_gradient_written();
}

void DenseProducts::weight_gradient(const Operand& dy, const Operand& x, at::Tensor gradient, bool accumulate) const {
  const bool same_dtype = dy.data.scalar_type() == gradient.scalar_type();
  TITAN_CHECK(!(accumulate && is_narrow(gradient)) && "a gradient in bf16 is written once in a step",
              summary_of(gradient));
  if (is_narrow(gradient) && dy.data.is_cpu() && !round_weight_gradient_) {
    gradient.copy_(transposed_product(dy.data.to(at::kFloat), x.data.to(at::kFloat)));
  } else if (!same_dtype && !round_weight_gradient_ && dy.data.is_cuda()) {
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

ParallelLinear::ParallelLinear(std::vector<Parameter*> weights, int first_ordinal,
                               std::shared_ptr<const LinearProducts> products, LinearSplit side,
                               std::shared_ptr<const SequenceParallel> exchange, bool reads_alone)
    : weights_(std::move(weights)),
      first_ordinal_(first_ordinal),
      products_(std::move(products)),
      side_(side),
      exchange_(std::move(exchange)),
      reads_alone_(reads_alone) {
  TITAN_CHECK(side == LinearSplit::input || weights_.size() == 1, weights_.size());
}

std::shared_ptr<ColumnGradients> ParallelLinear::column_gradients() const {
  if (weights_.size() < 2 || !products_->dense() || !joined_rows(matrices_of(weights_)).defined()) return nullptr;
  std::vector<int64_t> widths;
  for (const Parameter* weight : weights_) widths.push_back(weight->weight().size(0));
  return std::make_shared<ColumnGradients>(std::move(widths));
}

std::vector<at::Tensor> ParallelLinear::forward(const at::Tensor& input, UnitContext& context,
                                                const std::optional<HeadShape>& heads,
                                                std::shared_ptr<ColumnGradients> gradients) const {
  const at::Tensor& first = weights_[0]->weight();
  // A weight that was all-gathered in float8 has no compute dtype of its own.
  TITAN_CHECK(input.defined() && input.device() == first.device() && has_columns(input, first.size(1)) &&
                  (input.scalar_type() == first.scalar_type() || weights_[0]->in_float8()),
              weights_[0]->name(), summary_of(input), summary_of(first));
  const bool graph = wants_gradient({&input});
  BelowAutograd below;
  const at::Tensor x = as_matrix(input, weights_[0]->weight().size(1));
  Kept kept;
  kept.columns.resize(weights_.size());
  std::vector<at::Tensor> outputs = products(x, graph ? &kept : nullptr, gradients != nullptr, context);
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
    node->joined = std::move(gradients);
    node->side = side_;
    node->context = &context;
    context.note_saved(kept.x.data);
    context.note_saved(kept.x.transposed);
    for (const at::Tensor& columns : kept.columns) context.note_saved(columns);
    node->x = std::move(kept.x);
    node->columns = std::move(kept.columns);
    node->input_shape = input.sizes().vec();
    connect(std::move(node), {&input}, outputs);
  }
  return outputs;
}

/// The outputs, as far as the recompute policy requires; the input is gathered at most once.
std::vector<at::Tensor> ParallelLinear::products(const at::Tensor& x, Kept* kept, bool may_join,
                                                 UnitContext& context) const {
  std::vector<bool> wanted(weights_.size());
  at::Tensor matrix = may_join ? joined_rows(matrices_of(weights_)) : at::Tensor();
  for (size_t i = 0; i < weights_.size(); ++i) {
    const int ordinal = first_ordinal_ + static_cast<int>(i);
    const bool keeps = context.recorder.keeps(ResultKind::linear, ordinal);
    const bool skips = context.recorder.skips(ResultKind::linear, ordinal);
    wanted[i] = !(keeps && context.replay()) && !skips;
    if (keeps || skips) matrix.reset();  // a kept column would hold the memory of all
  }
  const bool scatters = exchange_ && side_ == LinearSplit::output;
  std::vector<at::Tensor> computed(weights_.size());
  if (kept) kept->x.data = x.detach();
  if (std::find(wanted.begin(), wanted.end(), true) != wanted.end()) {
    Operand operand = products_->prepare(x, weights_, {}, context);
    operand.generates = context.mode == UnitMode::logits;
    if (kept) kept->x.scale = operand.scale;
    // Beside an input that is saved anyway, its float8 form is one byte more a number: from forward to backward of
    // every block 1.0 GiB (8B, 8,192 tokens), in a replay 32 MiB, which spare backward a cast.
    const bool may_keep = reads_alone_ || context.replay();
    if (kept && !exchange_ && may_keep && products_->keeps_float8(weights_)) {
      operand.is_kept = true;
      operand = products_->ready(std::move(operand), weights_);
      kept->x = operand;
      kept->x.data.reset();
      kept->x.quantised.reset();
    }
    if (scatters) {
      computed[0] = scattered_product(operand);
    } else if (matrix.defined()) {
      computed = joined_products(operand, matrix);
    } else {
      computed = gathered_products(operand, wanted, context.recorder.checkpointed() ? nullptr : kept);
    }
  }
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

void ParallelLinear::for_gathered(const Operand& x,
                                  const std::function<void(int64_t first, const Operand& rows)>& multiply) const {
  if (!exchange_) return multiply(0, products_->ready(x, weights_));
  exchange_->gather(products_->message(x, weights_), [&](int64_t first, const at::Tensor& rows) {
    multiply(first, products_->ready(products_->received(rows, x, weights_), weights_));
  });
}

std::vector<at::Tensor> ParallelLinear::gathered_products(const Operand& x, const std::vector<bool>& wanted,
                                                          Kept* kept) const {
  std::vector<at::Tensor> outputs(weights_.size());
  const int64_t all = x.rows() * (exchange_ ? exchange_->ranks() : 1);
  for_gathered(x, [&](int64_t first, const Operand& rows) {
    for (size_t i = 0; i < weights_.size(); ++i) {
      at::Tensor* columns = kept && !exchange_ ? &kept->columns[i] : nullptr;
      if (wanted[i]) place_rows(outputs[i], first, products_->forward(rows, *weights_[i], columns), all);
    }
  });
  return outputs;
}

std::vector<at::Tensor> ParallelLinear::joined_products(const Operand& x, const at::Tensor& matrix) const {
  const int64_t all = x.rows() * (exchange_ ? exchange_->ranks() : 1);
  at::Tensor outputs;
  for_gathered(x, [&](int64_t first, const Operand& rows) {
    place_rows(outputs, first, products_->dense()->forward(rows, matrix), all);
  });
  std::vector<int64_t> widths;
  for (const Parameter* weight : weights_) widths.push_back(weight->weight().size(0));
  return outputs.split_with_sizes(widths, /*dim=*/1);
}

at::Tensor ParallelLinear::scattered_product(const Operand& x) const {
  const Operand operand = products_->ready(x, weights_);
  auto partial = [&](int64_t first, int64_t count) {
    return products_->forward(rows_of(operand, first, count), *weights_[0], nullptr);
  };
  return exchange_->scatter_sum(x.rows(), partial);
}

}  // namespace titan
