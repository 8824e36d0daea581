// Reads a safetensors file whole, by the header that the program reads of it.
#pragma once

#include <ATen/ops/empty.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "titan/checkpoint/safetensors.h"

namespace titan {

/// The tensors in the order of the file. Throws Error(storage) naming the file if its header does not match its bytes.
inline NamedTensors read_safetensors(const std::filesystem::path& path) {
  const std::unique_ptr<Storage> storage = make_posix_storage();
  CheckedReader file(*storage, path, std::nullopt);
  NamedTensors tensors;
  for (const SafetensorsEntry& entry : read_safetensors_header(file)) {
    at::Tensor tensor = at::empty(entry.tensor.shape, at::TensorOptions(entry.tensor.type));
    file.read(entry.offset, {static_cast<char*>(tensor.mutable_data_ptr()), tensor.nbytes()});
    tensors.emplace_back(entry.tensor.name, std::move(tensor));
  }
  return tensors;
}

}  // namespace titan
