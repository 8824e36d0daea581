#include "titan/checkpoint/safetensors.h"

#include <ATen/ops/empty.h>

#include "titan/base/filesystem.h"
#include "titan/checkpoint/safetensors_header.h"

namespace titan {

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<LogicalTensor> described;
  size_t total = 0;
  for (const auto& [name, tensor] : tensors) {
    described.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
    total += tensor.nbytes();
  }
  std::string bytes = safetensors_header(described, metadata);
  bytes.reserve(bytes.size() + total);
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor host = tensor.detach().cpu().contiguous();
    bytes.append(static_cast<const char*>(host.const_data_ptr()), host.nbytes());
  }
  write_file_atomically(path, bytes);
}

NamedTensors read_safetensors(const std::filesystem::path& path) {
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
