#include "titan/ops/linear.h"

#include <ATen/ATen.h>
#include <ATen/ops/mm.h>
#include <algorithm>

#include "matrix_product.h"
#include "titan/base/error.h"
#include "titan/ops/differentiable.h"

namespace titan {
namespace {

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

struct LinearBackward : BackwardNode {
  std::vector<Parameter*> weights;
  std::shared_ptr<const LinearProducts> products;
  std::shared_ptr<const SequenceParallel> exchange;
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
    for (size_t i = 0; i < weights.size(); ++i) {
      if (gradients[i].defined()) gradients[i] = as_matrix(gradients[i], weights[i]->weight().size(0));
    }
    std::vector<Operand> dys = products->prepare_gradients(std::move(gradients), weights, *context);
    for (size_t i = 0; i < dys.size(); ++i) {
      if (dys[i].defined()) dys[i] = products->ready(std::move(dys[i]), {weights[i]});
    }
    at::Tensor dx;
    if (task_should_compute_output(0)) {
      if (exchange) {
        auto partial = [&](int64_t first, int64_t count) { return input_gradient(dys, first, count); };
        dx = exchange->scatter_sum(x.rows() * exchange->ranks(), partial);
      } else {
        dx = input_gradient(dys, 0, x.rows());
      }
    }
    std::vector<Parameter*> trained;
    std::vector<Operand> their_dys;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (!dys[i].defined() || !weights[i]->trainable()) continue;
      trained.push_back(weights[i]);
      their_dys.push_back(std::move(dys[i]));
    }
    if (!trained.empty()) submit_weight_gradients(std::move(trained), std::move(their_dys));
    return dx;
  }

  void submit_weight_gradients(std::vector<Parameter*> trained, std::vector<Operand> dys) {
    const Operand mine = x.data.defined() ? products->prepare(x.data, weights, x.scale, *context) : x;
    context->sink->submit([trained = std::move(trained), dys = std::move(dys), mine, products = products,
                           exchange = exchange, all = weights] {
      auto add = [&](int64_t first, const Operand& rows) {
        const Operand shared = products->for_weight_gradients(rows, trained);
        for (size_t i = 0; i < trained.size(); ++i) {
          products->weight_gradient(rows_of(dys[i], first, rows.rows()), shared, *trained[i]);
        }
      };
      if (!exchange) return add(0, mine);
      exchange->gather(products->message(mine, all),
                       [&](int64_t first, const at::Tensor& rows) { add(first, products->received(rows, mine, all)); });
    });
  }

  at::Tensor input_gradient(const std::vector<Operand>& dys, int64_t first, int64_t count) {
    at::Tensor dx;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (dys[i].defined()) products->input_gradient(rows_of(dys[i], first, count), *weights[i], columns[i], dx);
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
  return (x.generates ? product_of_few_rows : product_with_transposed)(x.data, weight.weight());
}

void DenseProducts::input_gradient(const Operand& dy, const Parameter& weight, const at::Tensor&,
                                   at::Tensor& dx) const {
  if (dx.defined()) {
    product_into(dx, dy.data, weight.weight(), /*accumulate=*/true);
  } else {
    dx = product(dy.data, weight.weight());
  }
}

Operand DenseProducts::for_weight_gradients(const Operand& x, const Weights& weights) const {
  // GPUs multiply low-precision operands into an fp32 result; the CPU cannot.
  if (round_weight_gradient_ || x.data.is_cuda()) return x;
  return {.data = x.data.to(weights[0]->gradient().scalar_type())};
}

void DenseProducts::weight_gradient(const Operand& dy, const Operand& x, Parameter& weight) const {
  at::Tensor gradient = weight.gradient();
  const bool accumulate = weight.gradient_written();
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
  weight.mark_gradient_written();
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

std::vector<at::Tensor> ParallelLinear::forward(const at::Tensor& input, UnitContext& context,
                                                const std::optional<HeadShape>& heads) const {
  const bool graph = wants_gradient({&input});
  BelowAutograd below;
  const at::Tensor x = as_matrix(input, weights_[0]->weight().size(1));
  Kept kept;
  kept.columns.resize(weights_.size());
  std::vector<at::Tensor> outputs = products(x, graph ? &kept : nullptr, context);
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
std::vector<at::Tensor> ParallelLinear::products(const at::Tensor& x, Kept* kept, UnitContext& context) const {
  std::vector<bool> wanted(weights_.size());
  for (size_t i = 0; i < weights_.size(); ++i) {
    const int ordinal = first_ordinal_ + static_cast<int>(i);
    const bool handed_out = context.replay() && context.recorder.keeps(ResultKind::linear, ordinal);
    wanted[i] = !handed_out && !context.recorder.skips(ResultKind::linear, ordinal);
  }
  const bool scatters = exchange_ && side_ == LinearSplit::output;
  std::vector<at::Tensor> computed(weights_.size());
  if (kept) kept->x.data = x.detach();
  if (std::find(wanted.begin(), wanted.end(), true) != wanted.end()) {
    Operand operand = products_->prepare(x, weights_, {}, context);
    operand.generates = context.mode == UnitMode::logits;
    if (kept) kept->x.scale = operand.scale;
    if (kept && !exchange_ && reads_alone_ && products_->keeps_float8(weights_)) {
      operand.is_kept = true;
      operand = products_->ready(std::move(operand), weights_);
      kept->x = operand;
      kept->x.data.reset();
      kept->x.quantised.reset();
    }
    if (scatters) {
      computed[0] = scattered_product(operand);
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

std::vector<at::Tensor> ParallelLinear::gathered_products(const Operand& x, const std::vector<bool>& wanted,
                                                          Kept* kept) const {
  std::vector<at::Tensor> outputs(weights_.size());
  const int64_t all = x.rows() * (exchange_ ? exchange_->ranks() : 1);
  auto multiply = [&](int64_t first, const Operand& rows) {
    const Operand operand = products_->ready(rows, weights_);
    for (size_t i = 0; i < weights_.size(); ++i) {
      at::Tensor* columns = kept && !exchange_ ? &kept->columns[i] : nullptr;
      if (wanted[i]) place_rows(outputs[i], first, products_->forward(operand, *weights_[i], columns), all);
    }
  };
  if (!exchange_) {
    multiply(0, x);
    return outputs;
  }
  exchange_->gather(products_->message(x, weights_), [&](int64_t first, const at::Tensor& rows) {
    multiply(first, products_->received(rows, x, weights_));
  });
  return outputs;
}

at::Tensor ParallelLinear::scattered_product(const Operand& x) const {
  const Operand operand = products_->ready(x, weights_);
  auto partial = [&](int64_t first, int64_t count) {
    return products_->forward(rows_of(operand, first, count), *weights_[0], nullptr);
  };
  return exchange_->scatter_sum(x.rows(), partial);
}

namespace {

/// One linear group as its products see it: this rank's share of features, all tokens.
class TracedLinear {
 public:
  TracedLinear(UnitTrace& trace, TracedTensor x, int64_t inputs, const std::vector<TracedWeight>& weights,
               LinearSplit side, bool reads_alone)
      : trace_(trace),
        shape_(trace.shape()),
        x_(x),
        rows_(shape_.tokens()),
        inputs_(side == LinearSplit::output ? inputs / shape_.tensor_ranks : inputs),
        is_input_side_(side == LinearSplit::input),
        reads_alone_(reads_alone) {
    for (const TracedWeight& weight : weights) {
      const bool narrow = shape_.float8 && shape_.in_float8(weight.name);
      outputs_.push_back({is_input_side_ ? weight.outputs / shape_.tensor_ranks : weight.outputs, narrow});
      converted_ += narrow;
      most_outputs_ = std::max(most_outputs_, outputs_.back().count);
      all_outputs_ += outputs_.back().count;
    }
    all_converted_ = converted_ == std::ssize(weights);
    is_tensorwise_ = shape_.float8 == Float8Recipe::tensorwise && converted_ > 0;
  }

  std::vector<TracedTensor> add(int first_ordinal) {
    TracedOperation operation{.name = "linear", .inputs = {x_}, .defers = true};
    const int64_t result_rows = is_input_side_ ? rows_ : rows_ / shape_.tensor_ranks;
    int ordinal = first_ordinal;
    for (const Output& output : outputs_) {
      const int64_t bytes = result_rows * output.count * shape_.element_size;
      operation.results.push_back(trace_.tensor(bytes, ResultKind::linear, ordinal++));
    }
    std::vector<TracedTensor> results = operation.results;
    add_saved(operation);
    add_scratch(operation);
    add_products(operation);
    if (converted_ > 0) add_casts(operation);
    if (shape_.tensor_ranks > 1) add_messages(operation);
    trace_.add(std::move(operation));
    return results;
  }

 private:
  struct Output {
    int64_t count;
    bool in_float8;
  };
  bool shares() const { return shape_.tensor_ranks > 1; }
  /// Every weight reads the input in float8, with one scale.
  bool travels_in_float8() const { return is_tensorwise_ && all_converted_; }

  void add_saved(TracedOperation& operation) {
    if (travels_in_float8() && reads_alone_ && !shares()) {
      const TracedTensor transposed = trace_.tensor(rows_ * inputs_);
      operation.saved = {transposed};
    } else {
      operation.saved = {x_};
    }
    if (!shape_.keeps_float8_weights) return;
    for (const Output& output : outputs_) operation.saved_beside += output.in_float8 ? output.count * inputs_ : 0;
  }

  void add_scratch(TracedOperation& operation) const {
    const int64_t size = shape_.element_size;
    const int64_t hidden = rows_ * (is_input_side_ ? inputs_ : most_outputs_);  // of all tokens
    int64_t forward = shares() ? hidden * size : 0, backward = forward;
    if (shape_.on_gpu && converted_ > 0) {
      forward += rows_ * inputs_ + (shape_.gathers_float8 ? 0 : most_outputs_ * inputs_);
      const int64_t shares_of_input = outputs_.size() > 1 ? rows_ * inputs_ * size : 0;
      backward += 2 * rows_ * all_outputs_ + most_outputs_ * inputs_ + shares_of_input;
    } else if (!shape_.on_gpu && size < 4) {
      // Weight gradients are fp32 products of operands in fp32.
      backward = std::max(backward, 4 * rows_ * (inputs_ + most_outputs_));
    }
    operation.forward_scratch = forward;
    operation.backward_scratch = backward;
  }

  /// `result_size`: bytes of each element of the result that the product reads or writes.
  TracedWork product(int64_t rows, int64_t inner, int64_t columns, bool in_float8, int64_t result_size) const {
    const double m = static_cast<double>(rows), k = static_cast<double>(inner), n = static_cast<double>(columns);
    const double size = in_float8 ? 1 : static_cast<double>(shape_.element_size);
    return {.kind = in_float8 ? WorkKind::float8_product : WorkKind::product,
            .operations = 2 * m * k * n,
            .bytes = size * (m * k + k * n) + static_cast<double>(result_size) * m * n,
            .wide_bytes = static_cast<double>(result_size - shape_.element_size) * m * n};
  }

  void add_products(TracedOperation& operation) const {
    const bool dense_gradients = shape_.float8 == Float8Recipe::rowwise_with_gw_hp;
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const auto [count, in_float8] = outputs_[i];
      TracedWork forward = product(rows_, inputs_, count, in_float8, shape_.element_size);
      forward.makes = operation.results[i];
      operation.forward.push_back(forward);
      // Gradients of a shared input are added in the product, but of float8 products by kernels (add_casts).
      const int64_t adds = i > 0 && !in_float8 ? 2 : 1;
      operation.backward.push_back(product(rows_, count, inputs_, in_float8, adds * shape_.element_size));
      TracedWork weight_gradient = product(count, rows_, inputs_, in_float8 && !dense_gradients, 4);
      weight_gradient.is_weight_gradient = true;
      operation.backward.push_back(weight_gradient);
    }
  }

  /// A cast that writes both layouts reads its operand once and writes two bytes an element. A tensorwise scale needs
  /// the amax, which the kernel that wrote the tensor may have computed; a scale per row or column needs a separate
  /// pass.
  void add_casts(TracedOperation& operation) const {
    const double size = static_cast<double>(shape_.element_size);
    const double x = static_cast<double>(rows_ * inputs_);
    double dy = 0, weights = 0;
    for (const Output& output : outputs_) {
      dy += output.in_float8 ? static_cast<double>(rows_ * output.count) : 0;
      weights += output.in_float8 ? static_cast<double>(inputs_ * output.count) : 0;
    }
    const bool tensorwise = is_tensorwise_;
    const double passes = tensorwise ? (shape_.fused_kernels && reads_alone_ ? 0 : 1) : 1;  // over x for its amaxes
    const double of_weights = shape_.gathers_float8 ? 0 : weights;
    operation.forward.push_back(
        {.bytes = x * (size * (1 + passes) + (tensorwise ? 2 : 1)) + of_weights * (2 * size + 2)});
    const double again = tensorwise ? 0 : x * (2 * size + 1) + dy * (2 * size + 1) + weights * (2 * size + 1);
    const double sums = outputs_.size() > 1 ? static_cast<double>(outputs_.size() - 1) * 3 * size * x : 0;
    const double of_columns = shape_.gathers_float8 ? 2 * weights : 0;
    operation.backward.push_back(
        {.bytes = dy * (size + 2 + (tensorwise && shape_.fused_kernels ? 0 : size)) + again + sums + of_columns});
  }

  void add_messages(TracedOperation& operation) const {
    using group_names::kTensor;
    const int64_t width = is_input_side_ ? inputs_ : most_outputs_;
    const int64_t wide = rows_ * width * shape_.element_size;
    const int64_t narrow = travels_in_float8() ? rows_ * width : wide;
    const bool peer = shape_.async_tensor_parallel;
    const TracedMessage gather{kTensor, Collective::all_gather, {1, narrow}, peer};
    const TracedMessage scatter{kTensor, Collective::reduce_scatter, {1, wide}, peer};
    if (is_tensorwise_) {
      operation.forward_messages.push_back(
          {kTensor, Collective::all_reduce, {1, 4}, /*through_peer_memory=*/false, WhenReplayed::always});
      operation.backward_messages.push_back({kTensor, Collective::all_reduce, {1, 4 * converted_}});
    }
    operation.forward_messages.push_back(is_input_side_ ? gather : scatter);
    if (is_input_side_) operation.backward_messages.push_back(scatter);
    operation.backward_messages.push_back(gather);
  }

  UnitTrace& trace_;
  const TraceShape& shape_;
  TracedTensor x_;
  int64_t rows_, inputs_;
  bool is_input_side_, reads_alone_;
  std::vector<Output> outputs_;
  int64_t converted_ = 0, most_outputs_ = 0, all_outputs_ = 0;
  bool all_converted_ = false, is_tensorwise_ = false;
};

}  // namespace

std::vector<TracedTensor> trace_linear(UnitTrace& trace, TracedTensor x, int64_t inputs,
                                       const std::vector<TracedWeight>& weights, int first_ordinal, LinearSplit side,
                                       bool reads_alone) {
  return TracedLinear(trace, x, inputs, weights, side, reads_alone).add(first_ordinal);
}

}  // namespace titan
