#include "attention_kernels.h"

#include <ATen/ATen.h>

#include "titan/base/error.h"

namespace titan {
namespace {

enum class Kernel { cudnn, flash, efficient };

Kernel kernel_for(const at::Tensor& query) {
  if (query.scalar_type() == at::kFloat) return Kernel::efficient;
  const int64_t head_dim = query.size(3);
  return head_dim % 8 == 0 && head_dim <= 128 ? Kernel::cudnn : Kernel::flash;
}

/// Kernels without grouped-query support see each key head `repeats` times in a row.
at::Tensor repeat_heads(const at::Tensor& tensor, int64_t repeats) {
  return repeats == 1 ? tensor : tensor.repeat_interleave(repeats, 1);
}

at::Tensor sum_repeated_heads(const at::Tensor& gradient, int64_t repeats) {
  if (repeats == 1) return gradient;
  return gradient.unflatten(1, {gradient.size(1) / repeats, repeats}).sum(2);
}

}  // namespace

DenseAttention dense_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  DenseAttention result;
  const int64_t repeats = query.size(1) / key.size(1);
  switch (kernel_for(query)) {
    case Kernel::cudnn: {
      auto out = at::_scaled_dot_product_cudnn_attention(query, key, value, std::nullopt,
                                                         /*compute_log_sumexp=*/true, 0.0, /*is_causal=*/true);
      result = {std::get<0>(out), std::get<1>(out), {std::get<6>(out), std::get<7>(out)}};
      break;
    }
    case Kernel::flash: {
      auto out = at::_scaled_dot_product_flash_attention(query, key, value, 0.0, /*is_causal=*/true);
      result = {std::get<0>(out), std::get<1>(out), {std::get<6>(out), std::get<7>(out)}};
      break;
    }
    case Kernel::efficient: {
      auto out = at::_scaled_dot_product_efficient_attention(query, repeat_heads(key, repeats),
                                                             repeat_heads(value, repeats), std::nullopt,
                                                             /*compute_log_sumexp=*/true, 0.0, /*is_causal=*/true);
      result = {std::get<0>(out), std::get<1>(out), {std::get<2>(out), std::get<3>(out)}};
      break;
    }
  }
  return result;
}

std::array<at::Tensor, 3> dense_attention_backward(const at::Tensor& d_output, const at::Tensor& query,
                                                   const at::Tensor& key, const at::Tensor& value,
                                                   const DenseAttention& forward) {
  const int64_t repeats = query.size(1) / key.size(1);
  const int64_t length = query.size(2);
  const at::Tensor none;
  switch (kernel_for(query)) {
    case Kernel::cudnn: {
      auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
          d_output, query, key, value, forward.output, forward.log_sum_exp, forward.extra[0], forward.extra[1], none,
          none, none, length, length, 0.0, /*is_causal=*/true);
      return {dq, dk, dv};
    }
    case Kernel::flash: {
      auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_backward(
          d_output, query, key, value, forward.output, forward.log_sum_exp, none, none, length, length, 0.0,
          /*is_causal=*/true, forward.extra[0], forward.extra[1]);
      return {dq, dk, dv};
    }
    case Kernel::efficient: {
      auto [dq, dk, dv, bias] = at::_scaled_dot_product_efficient_attention_backward(
          d_output, query, repeat_heads(key, repeats), repeat_heads(value, repeats), none, forward.output,
          forward.log_sum_exp, forward.extra[0], forward.extra[1], 0.0, {true, true, true, false}, /*is_causal=*/true);
      return {dq, sum_repeated_heads(dk, repeats), sum_repeated_heads(dv, repeats)};
    }
  }
  TITAN_CHECK(false && "an attention kernel was chosen");
}

}  // namespace titan
