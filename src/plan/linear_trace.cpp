// The trace of ParallelLinear::forward (linear.cpp): its products, casts and messages, what it saves and its scratch.
#include <algorithm>

#include "titan/plan/device_mesh.h"
#include "titan/plan/operations.h"

namespace titan {
namespace {

/// One linear group as its products see it: this rank's share of features, all tokens.
class TracedLinear {
 public:
  TracedLinear(UnitTrace& trace, TracedTensor x, int64_t inputs, const std::vector<TracedWeight>& weights,
               LinearSplit side, bool reads_alone, int64_t copied_gradients)
      : trace_(trace),
        shape_(trace.shape()),
        x_(x),
        rows_(shape_.tokens()),
        inputs_(side == LinearSplit::output ? inputs / shape_.tensor_ranks : inputs),
        is_input_side_(side == LinearSplit::input),
        reads_alone_(reads_alone),
        copied_gradients_(copied_gradients),
        is_joined_(copied_gradients >= 0 && weights.size() > 1 && !shape_.float8) {
    for (const TracedWeight& weight : weights) {
      const bool narrow = shape_.float8 && shape_.in_float8(weight.name);
      outputs_.push_back(
          {is_input_side_ ? weight.outputs / shape_.tensor_ranks : weight.outputs, narrow, shape_.trains(weight.name)});
      converted_ += narrow;
      most_outputs_ = std::max(most_outputs_, outputs_.back().count);
      all_outputs_ += outputs_.back().count;
      if (!outputs_.back().trained) continue;
      most_trained_ = std::max(most_trained_, outputs_.back().count);
      ++trained_;
    }
    joins_backward_ = is_joined_ && (trained_ == 0 || trained_ == std::ssize(weights));
    all_converted_ = converted_ == std::ssize(weights);
    is_tensorwise_ = shape_.float8 == Float8Recipe::tensorwise && converted_ > 0;
  }

  std::vector<TracedTensor> add(int first_ordinal) {
    TracedOperation operation{.name = "linear", .inputs = {x_}, .defers = trained_ > 0};
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
    bool trained;
  };
  bool shares() const { return shape_.tensor_ranks > 1; }
  /// Every weight reads the input in float8, with one scale.
  bool travels_in_float8() const { return is_tensorwise_ && all_converted_; }
  /// The transposed float8 input can be kept for backward: always, or of an input that another operation also saves
  /// only in a replay.
  bool keeps_float8() const { return travels_in_float8() && !shares(); }
  /// Backward casts the input again, for the weights' gradients. What it gathers again is there in float8.
  bool casts_again() const {
    return is_tensorwise_ && trained_ > 0 && !(keeps_float8() && reads_alone_) && !(shares() && is_input_side_);
  }

  void add_saved(TracedOperation& operation) {
    operation.saved = {x_};
    if (keeps_float8()) (reads_alone_ ? operation.saved : operation.saved_in_replay) = {trace_.tensor(rows_ * inputs_)};
    if (!shape_.keeps_float8_weights) return;
    for (const Output& output : outputs_) operation.saved_beside += output.in_float8 ? output.count * inputs_ : 0;
  }

  void add_scratch(TracedOperation& operation) const {
    const int64_t size = shape_.element_size;
    // Tensor parallelism gathers the input, or has partial sums for all tokens before they are scattered.
    const int64_t hidden = rows_ * (is_input_side_ ? inputs_ : most_outputs_);
    int64_t forward = shares() ? hidden * size : 0, backward = forward;
    if (shape_.on_gpu && converted_ > 0) {
      forward += rows_ * inputs_ + (shape_.gathers_float8 ? 0 : most_outputs_ * inputs_);
      const int64_t shares_of_input = outputs_.size() > 1 ? rows_ * inputs_ * size : 0;
      backward += 2 * rows_ * all_outputs_ + most_outputs_ * inputs_ + shares_of_input;
    } else if (!shape_.on_gpu && size < 4 && trained_ > 0) {
      // CPUs cannot multiply bf16 into fp32: both operands are widened, and the product is copied to its place.
      const int64_t outputs = joins_backward_ ? all_outputs_ : most_trained_;
      backward = std::max(backward, 4 * (rows_ * (inputs_ + outputs) + outputs * inputs_));
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

  /// Adds one piece of work for each result, since a policy may recompute some of them only. A joined product reads its
  /// input once, which is counted with the first result.
  void add_forward_products(TracedOperation& operation) const {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      TracedWork forward = product(rows_, inputs_, outputs_[i].count, outputs_[i].in_float8, shape_.element_size);
      if (is_joined_ && i > 0) forward.bytes -= static_cast<double>(shape_.element_size * rows_ * inputs_);
      forward.makes = operation.results[i];
      operation.forward.push_back(forward);
    }
  }

  void add_weight_gradient(TracedOperation& operation, int64_t outputs, bool in_float8) const {
    TracedWork weight_gradient = product(outputs, rows_, inputs_, in_float8, shape_.gradient_size);
    weight_gradient.is_weight_gradient = true;
    operation.backward.push_back(weight_gradient);
  }

  /// One product over all weights for the input, and one for the weights.
  void add_joined_gradients(TracedOperation& operation) const {
    const auto size = static_cast<double>(shape_.element_size);
    operation.backward.push_back(product(rows_, all_outputs_, inputs_, false, shape_.element_size));
    if (trained_ > 0) add_weight_gradient(operation, all_outputs_, false);
    if (copied_gradients_ > 0) {
      const int64_t copied = rows_ * copied_gradients_ / shape_.tensor_ranks;
      operation.backward.push_back({.bytes = 2 * size * static_cast<double>(copied)});
      operation.backward_scratch += copied * shape_.element_size;
    }
  }

  void add_products(TracedOperation& operation) const {
    add_forward_products(operation);
    if (joins_backward_) return add_joined_gradients(operation);
    const bool dense_gradients = shape_.float8 == Float8Recipe::rowwise_with_gw_hp;
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const auto [count, in_float8, trained] = outputs_[i];
      // Gradients of a shared input are added in the product, but of float8 products by kernels (add_casts).
      const int64_t adds = i > 0 && !in_float8 ? 2 : 1;
      operation.backward.push_back(product(rows_, count, inputs_, in_float8, adds * shape_.element_size));
      if (trained) add_weight_gradient(operation, count, in_float8 && !dense_gradients);
    }
  }

  /// A cast that writes both layouts reads its operand once and writes two bytes an element; the transposed layout of
  /// an input that is not kept in it is cast in backward. A tensorwise scale needs the amax, which the kernel that
  /// wrote the tensor may have computed; a scale per row or column needs a separate pass.
  void add_casts(TracedOperation& operation) const {
    const double size = static_cast<double>(shape_.element_size);
    const double x = static_cast<double>(rows_ * inputs_);
    double dy = 0, weights = 0;
    for (const Output& output : outputs_) {
      dy += output.in_float8 ? static_cast<double>(rows_ * output.count) : 0;
      weights += output.in_float8 ? static_cast<double>(inputs_ * output.count) : 0;
    }
    const bool tensorwise = is_tensorwise_;
    // The scales of x take a pass over it, unless the fused kernel that wrote x has found the tensor's amax.
    const double passes = tensorwise ? (shape_.fused_kernels && reads_alone_ ? 0 : 1) : 1;
    const double of_weights = shape_.gathers_float8 ? 0 : weights;
    const double reads = tensorwise && !shape_.reads_weights_for_scales ? 0 : 1;
    const double written = tensorwise && !casts_again() ? 2 : 1;
    operation.forward.push_back({.bytes = x * (size * (1 + passes) + written) + of_weights * (size * (1 + reads) + 2)});
    const double again = tensorwise ? 0 : x * (2 * size + 1) + dy * (2 * size + 1) + weights * (2 * size + 1);
    const double sums = outputs_.size() > 1 ? static_cast<double>(outputs_.size() - 1) * 3 * size * x : 0;
    const double of_columns = shape_.gathers_float8 ? 2 * weights : 0;
    // Kernels of this project find the amaxes of the gradients they write; those that a joined product would copy come
    // from elsewhere.
    const double unknown = tensorwise && shape_.fused_kernels ? unknown_gradients() : dy;
    operation.backward.push_back({.bytes = dy * (size + 2) + unknown * size + again + sums + of_columns});
    if (!casts_again()) return;
    // A replay whose forward writes both layouts spares backward the reading; the byte written counts here either way.
    operation.backward.push_back({.bytes = x * size, .spared_by_replay = keeps_float8()});
    operation.backward.push_back({.bytes = x});
  }

  double unknown_gradients() const {
    if (!outputs_.back().in_float8) return 0;
    return static_cast<double>(rows_ * std::max<int64_t>(0, copied_gradients_) / shape_.tensor_ranks);
  }

  void add_messages(TracedOperation& operation) const {
    using communicator_names::kTensor;
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
    // The gathered input is not kept: backward gathers it again, which the weight gradients alone need.
    if (!is_input_side_ || trained_ > 0) operation.backward_messages.push_back(gather);
  }

  UnitTrace& trace_;
  const TraceShape& shape_;
  TracedTensor x_;
  int64_t rows_, inputs_;
  bool is_input_side_, reads_alone_;
  int64_t copied_gradients_;  // -1: the weights are multiplied one by one
  bool is_joined_;
  std::vector<Output> outputs_;
  int64_t converted_ = 0, most_outputs_ = 0, all_outputs_ = 0;
  int64_t trained_ = 0, most_trained_ = 0;  // number of trained weights, and the outputs of the largest
  bool all_converted_ = false, is_tensorwise_ = false;
  bool joins_backward_ = false;  // weights of which some are frozen are multiplied apart in backward
};

}  // namespace

std::vector<TracedTensor> trace_linear(UnitTrace& trace, TracedTensor x, int64_t inputs,
                                       const std::vector<TracedWeight>& weights, int first_ordinal, LinearSplit side,
                                       bool reads_alone, int64_t copied_gradients) {
  return TracedLinear(trace, x, inputs, weights, side, reads_alone, copied_gradients).add(first_ordinal);
}

}  // namespace titan
