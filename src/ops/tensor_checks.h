// What operations check of the tensors that they get, once at their entry: an operation reads memory by the first
// tensor's sizes and dtype, so a wrong second one would be read beyond its end, or as other numbers. Private to ops.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

namespace titan {

/// What a failed check says of a tensor: "Float [2, 3] on cpu", or "undefined".
std::string summary_of(const at::Tensor& tensor);

/// True if both are defined and have one dtype and one device.
bool same_kind(const at::Tensor& a, const at::Tensor& b);
/// The same, and one shape.
bool same_form(const at::Tensor& a, const at::Tensor& b);

/// Checks the inputs of an attention: query [B, T, Hq, d], key and value [B, T', Hk, d] of one dtype and device, where
/// Hk divides Hq. `keys` is T' where the caller knows it. Throws InvariantError.
void check_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     std::optional<int64_t> keys = std::nullopt);

/// Checks an operand of a float8 product: rows float8 [m, k]; the scale and its inverse fp32, one number or [m, 1].
/// Throws InvariantError.
void check_float8(const at::Tensor& rows, const at::Tensor& scale, const at::Tensor& inverse);

}  // namespace titan
