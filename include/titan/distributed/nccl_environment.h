// What LibTorch's NCCL groups read from the environment when they are made. titan keeps its own limits and its own
// record of collectives; these make the library's, which knows the kernels, agree with them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace titan {

/// Names and values, as torchtitan sets them: errors end the process without waiting for the GPU, and when a collective
/// is overdue, the last `remembered` of them (0: none) are written to `file_prefix` followed by the rank. With
/// `one_gpu_visible`, where every rank calls its GPU number 0, symmetric memory does not take equal numbers for one
/// GPU.
std::vector<std::pair<std::string, std::string>> nccl_environment(int64_t remembered, const std::string& file_prefix,
                                                                  bool one_gpu_visible);

/// Sets what the user has not set. To be called before other threads read the environment.
void set_where_unset(const std::vector<std::pair<std::string, std::string>>& environment);

}  // namespace titan
