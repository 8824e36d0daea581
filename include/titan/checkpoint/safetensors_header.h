// The header of a safetensors file: which tensors lie where in it. Read with the suspicion that a stranger's file
// deserves: what the header says is checked against itself and against the file's size before anything is believed.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "titan/checkpoint/hashed_file.h"
#include "titan/checkpoint/index.h"

namespace titan {

struct SafetensorsEntry {
  LogicalTensor tensor;
  int64_t offset = 0;  // of its first byte, in the file
  int64_t bytes = 0;

  bool operator==(const SafetensorsEntry&) const = default;
};

/// The entries in the order of their bytes. Throws DamageError naming the file when the header is longer than the file
/// or than the format's 100 MB, is no JSON of the right form, or when its tensors overlap, leave bytes out or reach
/// beyond the file.
std::vector<SafetensorsEntry> read_safetensors_header(CheckedReader& file);

/// All that comes before the tensors' bytes, which follow each other in the order given.
std::string safetensors_header(std::span<const LogicalTensor> tensors,
                               const std::map<std::string, std::string>& metadata);

/// The format's name of a dtype ("BF16"); throws InvariantError for one that has none here.
std::string safetensors_name(at::ScalarType type);

}  // namespace titan
