// The safetensors file form: an 8-byte header length, a JSON header, the tensors' bytes. Written here for debug dumps;
// exports use the same writer.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace titan {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Writes the tensors (any device, made contiguous) in the order given; the file appears whole or not at all.
/// Throws Error(storage) when it cannot be written.
void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// Reads every tensor of a file. Throws Error(storage) naming the file when its header does not fit its bytes.
NamedTensors read_safetensors(const std::filesystem::path& path);

}  // namespace titan
