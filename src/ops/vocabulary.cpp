#include "vocabulary.h"

#include <ATen/ATen.h>

#include <limits>

#include "titan/data/batch_stream.h"

namespace titan {

Vocabulary::Vocabulary(const Parameter& output, const TensorParallel* tensor_parallel)
    : words(output.spec().shape[0]),
      first(output.unsharded_box().offset[0]),
      count(output.unsharded_box().extent[0]),
      communicator(tensor_parallel ? tensor_parallel->communicator.get() : nullptr) {}

namespace {

/// The factor of each row's gradient.
at::Tensor scaled_rows(const at::Tensor& valid, const LossScale& scale) {
  at::Tensor factors = valid.to(at::kFloat);
  scale.multiply(factors);
  return factors;
}

}  // namespace

at::Tensor Vocabulary::gather(const at::Tensor& logits) const {
  if (!communicator) return logits;
  // Shards are of one size in the collective: the last ones are filled up.
  const int64_t ranks = communicator->size();
  const int64_t each = (words + ranks - 1) / ranks;
  const int64_t rows = logits.size(0);
  at::Tensor mine = logits;
  if (count < each) {
    mine = at::zeros({rows, each}, logits.options());
    mine.narrow(1, 0, count).copy_(logits);
  }
  at::Tensor all = at::empty({ranks, rows, each}, logits.options());
  communicator->all_gather({all}, {mine.contiguous()})->wait();
  return all.transpose(0, 1).reshape({rows, ranks * each}).narrow(1, 0, words);
}

at::Tensor losses_of_words(const at::Tensor& losses, const at::Tensor& labels, int64_t words) {
  const at::Tensor known = labels.ge(0).logical_and_(labels.lt(words));
  return at::where(labels.eq(kIgnoredLabel), 0.0F, at::where(known, losses, std::numeric_limits<float>::quiet_NaN()));
}

RowLosses row_losses(at::Tensor logits, const at::Tensor& labels, const LossScale& scale, bool want_gradient) {
  at::Tensor log_probability = at::_log_softmax(logits, 1, /*half_to_float=*/false);
  logits.reset();
  at::Tensor valid = labels.ne(kIgnoredLabel);
  const int64_t words = log_probability.size(1);
  at::Tensor target = labels.clamp(0, words - 1).unsqueeze(1);
  at::Tensor picked = log_probability.gather(1, target).squeeze(1);
  RowLosses losses{losses_of_words(picked, labels, words).sum(at::kDouble).neg_(), {}};
  if (!want_gradient) return losses;
  losses.gradient = log_probability.exp_();
  losses.gradient.scatter_add_(1, target, at::full({1, 1}, -1.0, losses.gradient.options()).expand(target.sizes()));
  losses.gradient.mul_(scaled_rows(valid, scale).unsqueeze(1));
  return losses;
}

RowLosses parallel_row_losses(at::Tensor&& logits, const at::Tensor& labels, const LossScale& scale, bool want_gradient,
                              const Vocabulary& vocabulary) {
  const int64_t rows = logits.size(0);
  at::Tensor largest = vocabulary.count > 0
                           ? logits.amax(1)
                           : at::full({rows}, -std::numeric_limits<float>::infinity(), logits.options());
  vocabulary.communicator->all_reduce({largest}, Reduction::max)->wait();
  logits.sub_(largest.unsqueeze(1));
  at::Tensor valid = labels.ne(kIgnoredLabel);
  at::Tensor target = labels - vocabulary.first;
  at::Tensor mine = target.ge(0).logical_and_(target.lt(vocabulary.count));  // an ignored label is nobody's
  target = target.mul_(mine).unsqueeze(1);
  at::Tensor packed = at::zeros({2, rows}, logits.options());  // Σ exp, and the target's logit
  if (vocabulary.count > 0) packed[1].copy_(logits.gather(1, target).squeeze(1).mul_(mine));
  logits.exp_();
  packed[0].copy_(logits.sum(1));
  vocabulary.communicator->all_reduce({packed})->wait();
  at::Tensor token_losses = packed[0].log() - packed[1];
  RowLosses losses{losses_of_words(token_losses, labels, vocabulary.words).sum(at::kDouble), {}};
  if (!want_gradient) return losses;
  losses.gradient = logits.div_(packed[0].unsqueeze(1));
  if (vocabulary.count > 0) losses.gradient.scatter_add_(1, target, mine.to(at::kFloat).neg_().unsqueeze(1));
  losses.gradient.mul_(scaled_rows(valid, scale).unsqueeze(1));
  return losses;
}

}  // namespace titan
