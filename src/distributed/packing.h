// Several tensors as one flat message: for backends where one large call is cheaper than many small ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace titan {

/// All elements of `tensors` in a row: a view when they are neighbours in memory, else a copy.
at::Tensor flattened(const std::vector<at::Tensor>& tensors);

/// Ranks' messages [ranks, Σ nᵢ] into outputs[i] [ranks·nᵢ]: each tensor's rows of all ranks together.
void unpack_rows(const at::Tensor& messages, const std::vector<at::Tensor>& outputs);

/// The inverse: inputs[i] [ranks·nᵢ] → [ranks, Σ nᵢ], a message for each rank. A view for a single input.
at::Tensor pack_rows(const std::vector<at::Tensor>& inputs, int64_t ranks);

/// A flat message back into the tensors it was made of.
void unflatten(const at::Tensor& message, const std::vector<at::Tensor>& tensors);

}  // namespace titan
