// A file of `torch.save` that holds a dictionary of tensors: how PyTorch programs pass weights on.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>

#include "titan/checkpoint/blob.h"
#include "titan/checkpoint/index.h"

namespace titan {

/// Hands the elements of tensor number `index` to `write`, in order, as contiguous tensors on the CPU.
using ElementPieces = std::function<void(size_t index, const std::function<void(const at::Tensor& piece)>& write)>;

void write_state_dict(HashingWriter& file, std::span<const LogicalTensor> tensors, const ElementPieces& pieces);

/// Where the tensors of such a file lie, by name. Throws DamageError or PickleError.
std::map<std::string, StoredElements> read_state_dict(CheckedReader& file);

}  // namespace titan
