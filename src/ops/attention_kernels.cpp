#include "attention_kernels.h"

#include <ATen/ATen.h>

#include <limits>

#include "tensor_checks.h"
#include "titan/base/error.h"

namespace titan {
namespace {

using Kernel = AttentionKernel;

// The efficient kernel pads the rows of its log-sum-exp, and its backward expects them so.
constexpr int64_t kEfficientAlignment = 32;

int64_t efficient_row(int64_t queries) {
  return (queries + kEfficientAlignment - 1) / kEfficientAlignment * kEfficientAlignment;
}

/// Repeats each key head `repeats` times in a row, for kernels that do not support grouped queries.
at::Tensor repeat_heads(const at::Tensor& tensor, int64_t repeats) {
  return repeats == 1 ? tensor : tensor.repeat_interleave(repeats, 1);
}

/// The kernels' layouts: query [B, Hq, T, d], key and value [B, Hk, T', d].
void check_dense(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const bool fit = same_kind(query, key) && same_form(key, value) && query.dim() == 4 && key.dim() == 4 &&
                   key.size(0) == query.size(0) && key.size(3) == query.size(3) && key.size(1) > 0 &&
                   query.size(1) % key.size(1) == 0;
  TITAN_CHECK(fit, summary_of(query), summary_of(key), summary_of(value));
}

at::Tensor sum_repeated_heads(const at::Tensor& gradient, int64_t repeats) {
  if (repeats == 1) return gradient;
  return gradient.unflatten(1, {gradient.size(1) / repeats, repeats}).sum(2);
}

}  // namespace

AttentionKernel kernel_for(const at::Tensor& query, AttentionKernel preferred) {
  if (query.scalar_type() == at::kFloat) return Kernel::efficient;
  const int64_t head_dim = query.size(3);
  // LibTorch's conditions for cuDNN, those that hold on every GPU. Flash takes heads of up to 256.
  const bool cudnn_takes_it = head_dim % 8 == 0 && head_dim <= 128;
  return preferred == Kernel::cudnn && !cudnn_takes_it ? Kernel::flash : preferred;
}

AttentionKernel preferred_for(bool documents, AttentionKernel preferred) {
  return documents && preferred == Kernel::cudnn ? Kernel::flash : preferred;
}

bool log_sum_exp_has_column(AttentionKernel kernel, const at::Device& device) {
  if (kernel != Kernel::cudnn) return false;
  static const bool has_column = [&device] {
    constexpr int64_t kSize = 64;  // positions and size of a head: small, and a multiple of 8, which cuDNN needs
    const at::Tensor x = at::zeros({1, 1, kSize, kSize}, at::TensorOptions(device).dtype(at::kBFloat16));
    return dense_attention(Kernel::cudnn, x, x, x, /*causal=*/true).log_sum_exp.dim() == 4;
  }();
  return has_column;
}

std::vector<int64_t> log_sum_exp_shape(AttentionKernel kernel, int64_t samples, int64_t heads, int64_t queries,
                                       bool has_column) {
  if (has_column) return {samples, heads, queries, 1};
  return {samples, heads, kernel == Kernel::efficient ? efficient_row(queries) : queries};
}

std::array<at::Tensor, 2> no_random_state(const at::Tensor& query) {
  const at::Tensor state = at::zeros({}, query.options().dtype(at::kLong));
  return {state, state};
}

DenseAttention dense_attention(AttentionKernel kernel, const at::Tensor& query, const at::Tensor& key,
                               const at::Tensor& value, bool causal) {
  check_dense(query, key, value);
  DenseAttention result;
  const int64_t repeats = query.size(1) / key.size(1);
  switch (kernel) {
    case Kernel::cudnn: {
      auto out = at::_scaled_dot_product_cudnn_attention(query, key, value, std::nullopt,
                                                         /*compute_log_sumexp=*/true, 0.0, causal);
      result = {std::get<0>(out), std::get<1>(out), {std::get<6>(out), std::get<7>(out)}};
      break;
    }
    case Kernel::flash: {
      auto out = at::_scaled_dot_product_flash_attention(query, key, value, 0.0, causal);
      result = {std::get<0>(out), std::get<1>(out), {std::get<6>(out), std::get<7>(out)}};
      break;
    }
    case Kernel::efficient: {
      auto out = at::_scaled_dot_product_efficient_attention(query, repeat_heads(key, repeats),
                                                             repeat_heads(value, repeats), std::nullopt,
                                                             /*compute_log_sumexp=*/true, 0.0, causal);
      result = {std::get<0>(out), std::get<1>(out), {std::get<2>(out), std::get<3>(out)}};
      break;
    }
  }
  return result;
}

std::array<at::Tensor, 3> dense_attention_backward(AttentionKernel kernel, const at::Tensor& d_output,
                                                   const at::Tensor& query, const at::Tensor& key,
                                                   const at::Tensor& value, const DenseAttention& forward,
                                                   bool causal) {
  check_dense(query, key, value);
  TITAN_CHECK(same_form(d_output, query) && same_form(forward.output, query), summary_of(d_output),
              summary_of(forward.output), summary_of(query));
  const int64_t repeats = query.size(1) / key.size(1);
  const int64_t queries = query.size(2);
  const int64_t keys = key.size(2);
  const at::Tensor none;
  switch (kernel) {
    case Kernel::cudnn: {
      auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
          d_output, query, key, value, forward.output, forward.log_sum_exp, forward.extra[0], forward.extra[1], none,
          none, none, queries, keys, 0.0, causal);
      return {dq, dk, dv};
    }
    case Kernel::flash: {
      auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
          d_output, query, key, value, forward.output, forward.log_sum_exp, none, none, queries, keys, 0.0, causal,
          forward.extra[0], forward.extra[1]);
      return {dq, dk, dv};
    }
    case Kernel::efficient: {
      auto [dq, dk, dv, bias] = at::_scaled_dot_product_efficient_attention_backward(
          d_output, query, repeat_heads(key, repeats), repeat_heads(value, repeats), none, forward.output,
          forward.log_sum_exp, forward.extra[0], forward.extra[1], 0.0, {true, true, true, false}, causal);
      return {dq, sum_repeated_heads(dk, repeats), sum_repeated_heads(dv, repeats)};
    }
  }
  TITAN_CHECK(false && "an attention kernel was chosen");
}

namespace {

/// A block's queries or keys of a [B, T, H, d] tensor in the kernels' layout [b, H, t, d].
at::Tensor queries_of(const at::Tensor& tensor, const AttentionBlock& block) {
  return tensor.narrow(0, block.sample, block.samples).narrow(1, block.query, block.queries).transpose(1, 2);
}
at::Tensor keys_of(const at::Tensor& tensor, const AttentionBlock& block) {
  return tensor.narrow(0, block.sample, block.samples).narrow(1, block.key, block.keys).transpose(1, 2);
}
/// A block's slice of the log-sum-exp [B, H, T].
at::Tensor sums_of(const at::Tensor& tensor, const AttentionBlock& block) {
  return tensor.narrow(0, block.sample, block.samples).narrow(2, block.query, block.queries);
}

/// Converts between a kernel's log-sum-exp and [B, H, T].
at::Tensor plain_log_sum_exp(const at::Tensor& log_sum_exp, Kernel kernel, int64_t queries) {
  const at::Tensor rows = log_sum_exp.dim() == 4 ? log_sum_exp.squeeze(-1) : log_sum_exp;
  return kernel == Kernel::efficient ? rows.narrow(2, 0, queries) : rows;
}
at::Tensor kernel_log_sum_exp(const at::Tensor& plain, Kernel kernel) {
  if (log_sum_exp_has_column(kernel, plain.device())) return plain.contiguous().unsqueeze(-1);
  if (kernel != Kernel::efficient) return plain.contiguous();
  const int64_t missing = efficient_row(plain.size(2)) - plain.size(2);
  return at::constant_pad_nd(plain, {0, missing}, std::numeric_limits<float>::infinity());
}

}  // namespace

void merge_dense_attention(AttentionKernel preferred, const AttentionSums& sums, const at::Tensor& query,
                           const at::Tensor& key, const at::Tensor& value, const std::vector<AttentionBlock>& blocks) {
  for (const AttentionBlock& block : blocks) {
    const at::Tensor q = queries_of(query, block);
    const Kernel kernel = kernel_for(q, preferred);
    const DenseAttention part = dense_attention(kernel, q, keys_of(key, block), keys_of(value, block), block.causal);
    const at::Tensor log_sum = plain_log_sum_exp(part.log_sum_exp, kernel, block.queries);
    at::Tensor output = queries_of(sums.output, block);
    at::Tensor total = sums_of(sums.log_sum_exp, block);
    // σ(l' − l) weighs the new part, 1 − σ the sum so far. Unlike exp(l' − l) it holds for the first block, where l is
    // −∞.
    const at::Tensor weight = at::sigmoid(log_sum - total).unsqueeze(-1);
    output.add_(weight * (part.output.to(at::kFloat) - output));
    total.copy_(at::logaddexp(total, log_sum));
  }
}

void add_dense_gradients(AttentionKernel preferred, const AttentionGradients& gradients, const at::Tensor& d_output,
                         const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const at::Tensor& output, const at::Tensor& log_sum_exp,
                         const std::vector<AttentionBlock>& blocks) {
  const std::array<at::Tensor, 2> no_state = no_random_state(query);
  for (const AttentionBlock& block : blocks) {
    const at::Tensor q = queries_of(query, block);
    const Kernel kernel = kernel_for(q, preferred);
    const DenseAttention forward{queries_of(output, block), kernel_log_sum_exp(sums_of(log_sum_exp, block), kernel),
                                 no_state};
    const auto [dq, dk, dv] = dense_attention_backward(kernel, queries_of(d_output, block), q, keys_of(key, block),
                                                       keys_of(value, block), forward, block.causal);
    queries_of(gradients.query, block).add_(dq);
    keys_of(gradients.key, block).add_(dk);
    keys_of(gradients.value, block).add_(dv);
  }
}

}  // namespace titan
