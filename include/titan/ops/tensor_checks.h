// What functions that take tensors check at their entry, with the words for what they got. A function reads memory by
// the first tensor's sizes and dtype, so a wrong second one would be read beyond its end, or as other numbers; and
// copy_ converts and broadcasts without a word. One check for each call, of sizes and dtypes alone: it never reads an
// element, so it does not wait for a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace titan {

/// What a failed check says of a tensor of any shape: "Float [2, 3] on cpu", or "undefined".
std::string summary_of(const at::Tensor& tensor);

/// True if `a` and `b` (any shapes) are defined and have one dtype and one device.
bool same_kind(const at::Tensor& a, const at::Tensor& b);
/// The same, and one shape.
bool same_form(const at::Tensor& a, const at::Tensor& b);
/// True if the tensor is one number (0-dimensional) of this dtype.
bool is_number(const at::Tensor& tensor, at::ScalarType type);

}  // namespace titan
