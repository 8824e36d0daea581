#include "titan/ops/embedding.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "cpu_embedding.h"
#include "fused_elementwise.h"
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

constexpr int64_t kColumnsWorthAThread = 64;  // four cache lines of a row

bool has_cpu_loop(const at::Tensor& gradient, const at::Tensor& dy) {
  return gradient.is_cpu() && gradient.scalar_type() == at::kFloat && gradient.is_contiguous() &&
         (dy.scalar_type() == at::kFloat || dy.scalar_type() == at::kBFloat16);
}

void add_rows_cpu(at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& tokens, int64_t first) {
  const at::Tensor rows = dy.contiguous();
  const EmbeddingRows shape{first, gradient.size(0), gradient.size(1), tokens.const_data_ptr<int64_t>(),
                            tokens.numel()};
  auto* sums = gradient.mutable_data_ptr<float>();
  at::parallel_for(0, shape.columns, kColumnsWorthAThread, [&](int64_t begin, int64_t end) {
    if (rows.scalar_type() == at::kFloat) {
      cpu_add_embedding_rows(sums, rows.const_data_ptr<float>(), shape, begin, end);
    } else {
      cpu_add_embedding_rows(sums, static_cast<const BFloat16Bits*>(rows.const_data_ptr()), shape, begin, end);
    }
  });
}

/// gradient[row of tokens[i]] += dy[i] for the words that this rank holds: in place, so that rows of words that do not
/// occur are neither read nor written, and in an order that does not depend on the schedule. A CPU adds one by one to
/// what is there, the kernel of a GPU the sum of a word's: their last bits differ.
void add_rows(at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& tokens, const Parameter& weight,
              const UnitContext& context) {
  const int64_t first = weight.unsharded_box().offset[0];
  const int64_t count = gradient.size(0);
  if (count == 0 || fused_embedding_gradient(gradient, dy, tokens, first, context)) return;
  if (has_cpu_loop(gradient, dy)) return add_rows_cpu(gradient, dy, tokens, first);
  at::Tensor rows = dy.to(gradient.scalar_type());
  at::Tensor index = tokens;
  if (count != weight.spec().shape[0]) {
    // Words of other ranks add zeros, and not all to one row: rows of one word are added one behind the other.
    index = tokens - first;
    rows = at::where(index.ge(0).logical_and_(index.lt(count)).unsqueeze(1), rows, 0.0);
    index.remainder_(count);
  }
  // Sorted on a GPU, without atomics; `unsafe`, because a look at the bounds would have the host wait, and forward has
  // looked rows up by the same index.
  at::_index_put_impl_(gradient, {index}, rows, /*accumulate=*/true, /*unsafe=*/true);
}

struct EmbeddingBackward : BackwardNode {
  Parameter* weight = nullptr;
  const TokenExchange* exchange = nullptr;
  const UnitContext* context = nullptr;
  at::Tensor tokens;

  torch::autograd::variable_list backward(torch::autograd::variable_list gradients) override {
    if (!weight->trainable()) return {at::Tensor()};
    at::Tensor& gradient = weight->gradient();
    if (!weight->gradient_written()) gradient.zero_();
    add_rows(gradient, exchange ? gather_rows(*exchange, gradients[0]) : gradients[0], tokens, *weight, *context);
    weight->mark_gradient_written();
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
    node->context = &context;
    node->tokens = flat;
    context.note_saved(flat);
    connect(std::move(node), {&anchor}, {rows});
  }
  return rows;
}

}  // namespace titan
