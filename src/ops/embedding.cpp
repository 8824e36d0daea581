#include "titan/ops/embedding.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <limits>

#include "cpu_elementwise.h"
#include "fused_elementwise.h"
#include "tensor_checks.h"
#include "titan/base/error.h"
#include "titan/ops/differentiable.h"
#include "titan/stream/batch_stream.h"

namespace titan {
namespace {

/// This rank's vocabulary shard, and which tokens fall into it.
struct LocalTokens {
  at::Tensor index;  // row of the shard; 0 for tokens of other ranks
  at::Tensor mine;   // bool [N, 1]; undefined if the vocabulary is not sharded
};

LocalTokens local_tokens(const at::Tensor& tokens, const Parameter& weight) {
  const int64_t first = weight.unsharded_box().offset[0];
  const int64_t count = weight.unsharded_box().extent[0];
  if (count == weight.spec().shape[0]) return {tokens, {}};
  at::Tensor index = tokens - first;
  at::Tensor mine = index.ge(0).logical_and_(index.lt(count));
  return {index.mul_(mine), mine.unsqueeze(1)};
}

// Four cache lines of a row. Threads split columns: with rows, two threads would add to the row of one token.
constexpr int64_t kColumnsWorthAThread = 64;

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

/// gradient[row of tokens[i]] += dy[i] for tokens of this rank's shard: in place, so rows of absent tokens are not
/// touched, and in an order independent of the schedule. The CPU adds rows one by one, the GPU kernel adds the sum of
/// the rows of equal tokens: the last bits differ.
void add_rows(at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& tokens, const Parameter& weight,
              const UnitContext& context) {
  const int64_t first = weight.unsharded_box().offset[0];
  const int64_t count = gradient.size(0);
  if (count == 0 || fused_embedding_gradient(gradient, dy, tokens, first, context)) return;
  if (has_cpu_loop(gradient, dy)) return add_rows_cpu(gradient, dy, tokens, first);
  at::Tensor rows = dy.to(gradient.scalar_type());
  at::Tensor index = tokens;
  if (count != weight.spec().shape[0]) {
    // Tokens of other ranks add zeros, spread over rows: equal indices are added sequentially.
    index = tokens - first;
    rows = at::where(index.ge(0).logical_and_(index.lt(count)).unsqueeze(1), rows, 0.0);
    index.remainder_(count);
  }
  // Sorted on a GPU, without atomics; `unsafe`, because a bounds check synchronises the host, and forward has already
  // used the same index.
  at::_index_put_impl_(gradient, {index}, rows, /*accumulate=*/true, /*unsafe=*/true);
}

struct EmbeddingBackward : BackwardNode {
  Parameter* weight = nullptr;
  const SequenceParallel* exchange = nullptr;
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

at::Tensor look_up(const at::Tensor& tokens, const Parameter& weight, const SequenceParallel* exchange) {
  const LocalTokens local = local_tokens(tokens, weight);
  if (weight.weight().size(0) == 0) {
    at::Tensor none = at::zeros({tokens.size(0), weight.weight().size(1)}, weight.weight().options());
    return exchange ? scatter_rows(*exchange, none) : none;
  }
  at::Tensor rows = at::embedding(weight.weight(), local.index);
  if (local.mine.defined()) rows.mul_(local.mine);
  return exchange ? scatter_rows(*exchange, rows) : rows;
}

}  // namespace

at::Tensor embedding(const at::Tensor& anchor, const at::Tensor& tokens, Parameter& weight,
                     const SequenceParallel* exchange, UnitContext& context) {
  TITAN_CHECK(
      tokens.scalar_type() == at::kLong && tokens.device() == weight.weight().device() && weight.weight().dim() == 2,
      weight.name(), summary_of(tokens), summary_of(weight.weight()));
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

Vocabulary::Vocabulary(const Parameter& output, const TensorParallel* tensor_parallel)
    : size(output.spec().shape[0]),
      first(output.unsharded_box().offset[0]),
      count(output.unsharded_box().extent[0]),
      communicator(tensor_parallel ? tensor_parallel->communicator.get() : nullptr) {}

namespace {

/// Logits fp32 [rows, vocabulary or this rank's shard of it], and their labels int64 [rows].
void check_logits(const at::Tensor& logits, const at::Tensor& labels) {
  TITAN_CHECK(logits.scalar_type() == at::kFloat && logits.dim() == 2 && labels.scalar_type() == at::kLong &&
                  labels.dim() == 1 && labels.size(0) == logits.size(0) && labels.device() == logits.device(),
              summary_of(logits), summary_of(labels));
}

/// The loss scale of each row's gradient; 0 for ignored rows.
at::Tensor scaled_rows(const at::Tensor& valid, const LossScale& scale) {
  at::Tensor factors = valid.to(at::kFloat);
  scale.multiply(factors);
  return factors;
}

}  // namespace

at::Tensor Vocabulary::gather(const at::Tensor& logits) const {
  TITAN_CHECK(logits.dim() == 2 && logits.size(1) == count, summary_of(logits), count);
  if (!communicator) return logits;
  // The collective needs equal shards, and the last ones may be shorter or empty.
  const int64_t ranks = communicator->size();
  const int64_t each = (size + ranks - 1) / ranks;
  const int64_t rows = logits.size(0);
  at::Tensor mine = logits;
  if (count < each) {
    mine = at::zeros({rows, each}, logits.options());
    mine.narrow(1, 0, count).copy_(logits);
  }
  at::Tensor all = at::empty({ranks, rows, each}, logits.options());
  communicator->all_gather({all}, {mine.contiguous()})->wait();
  return all.transpose(0, 1).reshape({rows, ranks * each}).narrow(1, 0, size);
}

at::Tensor masked_losses(const at::Tensor& losses, const at::Tensor& labels, int64_t vocab_size) {
  TITAN_CHECK(
      labels.scalar_type() == at::kLong && labels.sizes() == losses.sizes() && labels.device() == losses.device(),
      summary_of(losses), summary_of(labels));
  const at::Tensor known = labels.ge(0).logical_and_(labels.lt(vocab_size));
  return at::where(labels.eq(kIgnoredLabel), 0.0F, at::where(known, losses, std::numeric_limits<float>::quiet_NaN()));
}

RowLosses row_losses(at::Tensor logits, const at::Tensor& labels, const LossScale& scale, bool want_gradient) {
  check_logits(logits, labels);
  at::Tensor log_probability = at::_log_softmax(logits, 1, /*half_to_float=*/false);
  logits.reset();
  at::Tensor valid = labels.ne(kIgnoredLabel);
  const int64_t vocab_size = log_probability.size(1);
  at::Tensor target = labels.clamp(0, vocab_size - 1).unsqueeze(1);
  at::Tensor picked = log_probability.gather(1, target).squeeze(1);
  RowLosses losses{masked_losses(picked, labels, vocab_size).sum(at::kDouble).neg_(), {}};
  if (!want_gradient) return losses;
  losses.gradient = log_probability.exp_();
  losses.gradient.scatter_add_(1, target, at::full({1, 1}, -1.0, losses.gradient.options()).expand(target.sizes()));
  losses.gradient.mul_(scaled_rows(valid, scale).unsqueeze(1));
  return losses;
}

RowLosses parallel_row_losses(at::Tensor&& logits, const at::Tensor& labels, const LossScale& scale, bool want_gradient,
                              const Vocabulary& vocabulary) {
  check_logits(logits, labels);
  TITAN_CHECK(logits.size(1) == vocabulary.count && vocabulary.communicator, summary_of(logits), vocabulary.count);
  const int64_t rows = logits.size(0);
  at::Tensor largest = vocabulary.count > 0
                           ? logits.amax(1)
                           : at::full({rows}, -std::numeric_limits<float>::infinity(), logits.options());
  vocabulary.communicator->all_reduce({largest}, Reduction::max)->wait();
  logits.sub_(largest.unsqueeze(1));
  at::Tensor valid = labels.ne(kIgnoredLabel);
  at::Tensor target = labels - vocabulary.first;
  at::Tensor mine = target.ge(0).logical_and_(target.lt(vocabulary.count));
  target = target.mul_(mine).unsqueeze(1);
  at::Tensor packed = at::zeros({2, rows}, logits.options());  // Σ exp, and the label's logit: one all-reduce for both
  if (vocabulary.count > 0) packed[1].copy_(logits.gather(1, target).squeeze(1).mul_(mine));
  logits.exp_();
  packed[0].copy_(logits.sum(1));
  vocabulary.communicator->all_reduce({packed})->wait();
  at::Tensor token_losses = packed[0].log() - packed[1];
  RowLosses losses{masked_losses(token_losses, labels, vocabulary.size).sum(at::kDouble), {}};
  if (!want_gradient) return losses;
  losses.gradient = logits.div_(packed[0].unsqueeze(1));
  if (vocabulary.count > 0) losses.gradient.scatter_add_(1, target, mine.to(at::kFloat).neg_().unsqueeze(1));
  losses.gradient.mul_(scaled_rows(valid, scale).unsqueeze(1));
  return losses;
}

}  // namespace titan
