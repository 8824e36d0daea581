#include "packing.h"

#include <ATen/ATen.h>

#include "titan/base/error.h"

namespace titan {
namespace {

bool neighbours(const std::vector<at::Tensor>& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].is_contiguous()) return false;
    if (i == 0) continue;
    const at::Tensor& before = tensors[i - 1];
    if (!before.storage().is_alias_of(tensors[i].storage()) ||
        before.storage_offset() + before.numel() != tensors[i].storage_offset()) {
      return false;
    }
  }
  return true;
}

at::Tensor as_one(const std::vector<at::Tensor>& neighbours) {
  return neighbours[0].as_strided({total_elements(neighbours)}, {1}, neighbours[0].storage_offset());
}

}  // namespace

int64_t total_elements(const std::vector<at::Tensor>& tensors) {
  int64_t total = 0;
  for (const at::Tensor& tensor : tensors) total += tensor.numel();
  return total;
}

void pack(const std::vector<at::Tensor>& tensors, const at::Tensor& message) {
  if (neighbours(tensors)) {
    message.copy_(as_one(tensors));
    return;
  }
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    message.narrow(0, offset, tensor.numel()).view(tensor.sizes()).copy_(tensor);
    offset += tensor.numel();
  }
}

at::Tensor room_for(const std::vector<at::Tensor>& tensors) {
  TITAN_CHECK(!tensors.empty());
  return neighbours(tensors) ? as_one(tensors) : at::empty({total_elements(tensors)}, tensors[0].options());
}

at::Tensor flattened(const std::vector<at::Tensor>& tensors) {
  TITAN_CHECK(!tensors.empty());
  if (neighbours(tensors)) return as_one(tensors);
  at::Tensor message = at::empty({total_elements(tensors)}, tensors[0].options());
  pack(tensors, message);
  return message;
}

void unpack_rows(const at::Tensor& messages, const std::vector<at::Tensor>& outputs) {
  const int64_t ranks = messages.size(0);
  int64_t offset = 0;
  for (const at::Tensor& output : outputs) {
    const int64_t each = output.numel() / ranks;
    output.view({ranks, each}).copy_(messages.narrow(1, offset, each));
    offset += each;
  }
}

at::Tensor pack_rows(const std::vector<at::Tensor>& inputs, int64_t ranks) {
  if (inputs.size() == 1) return inputs[0].contiguous().view({ranks, -1});
  at::Tensor messages = at::empty({ranks, total_elements(inputs) / ranks}, inputs[0].options());
  int64_t offset = 0;
  for (const at::Tensor& input : inputs) {
    const int64_t each = input.numel() / ranks;
    messages.narrow(1, offset, each).copy_(input.view({ranks, each}));
    offset += each;
  }
  return messages;
}

void unflatten(const at::Tensor& message, const std::vector<at::Tensor>& tensors) {
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    at::Tensor part = message.narrow(0, offset, tensor.numel()).view(tensor.sizes());
    if (part.const_data_ptr() != tensor.const_data_ptr()) tensor.copy_(part);
    offset += tensor.numel();
  }
}

}  // namespace titan
