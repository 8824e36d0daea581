// Several tensors as one flat message: for backends where one large call is cheaper than many small ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace titan {

int64_t total_elements(const std::vector<at::Tensor>& tensors);

/// All elements of `tensors` in a row: a view when they are neighbours in memory, else a copy.
at::Tensor flattened(const std::vector<at::Tensor>& tensors);

/// Ranks' messages [ranks, Σ nᵢ] into outputs[i] [ranks·nᵢ]: each tensor's rows of all ranks together.
void unpack_rows(const at::Tensor& messages, const std::vector<at::Tensor>& outputs);

/// The inverse: inputs[i] [ranks·nᵢ] → [ranks, Σ nᵢ], a message for each rank. A view for a single input.
at::Tensor pack_rows(const std::vector<at::Tensor>& inputs, int64_t ranks);

/// The elements of `tensors` in a row, into `message`.
void pack(const std::vector<at::Tensor>& tensors, const at::Tensor& message);

/// Where a flat message for `tensors` can be made: their own memory when they are neighbours, else new memory.
at::Tensor room_for(const std::vector<at::Tensor>& tensors);

/// A flat message back into the tensors it was made of.
void unflatten(const at::Tensor& message, const std::vector<at::Tensor>& tensors);

}  // namespace titan
