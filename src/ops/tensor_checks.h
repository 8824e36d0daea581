// What several operations check of the tensors that they get. Private to ops.
#pragma once

#include <optional>

#include "titan/ops/tensor_checks.h"

namespace titan {

/// Checks the inputs of an attention: query [B, T, Hq, d], key and value [B, T', Hk, d] of one dtype and device, where
/// Hk divides Hq. `keys` is T' where the caller knows it. Throws InvariantError.
void check_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     std::optional<int64_t> keys = std::nullopt);

/// Checks an operand of a float8 product: rows float8 [m, k]; the scale and its inverse fp32, one number or [m, 1].
/// Throws InvariantError.
void check_float8(const at::Tensor& rows, const at::Tensor& scale, const at::Tensor& inverse);

}  // namespace titan
