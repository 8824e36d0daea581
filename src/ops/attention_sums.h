// What several calls of an attention kernel add up, each over other keys.
#pragma once

#include <ATen/core/Tensor.h>

namespace titan {

/// fp32; the softmax over the keys so far.
struct AttentionSums {
  at::Tensor output;       // [B, T, Hq, d], 0 at first
  at::Tensor log_sum_exp;  // [B, Hq, T], −∞ at first
};

/// query [B, T, Hq, d], key and value [B, T', Hk, d].
struct AttentionGradients {
  at::Tensor query, key, value;
};

}  // namespace titan
