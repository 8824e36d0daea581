// The GPU of a thread. CUDA takes number 0 for a thread that has chosen none, and the first question that such a thread
// asks makes half a gigabyte of context there, on every rank: so what a thread is started with begins with a choice.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace titan {

/// The number of the GPU that this thread has chosen; 0 where it has chosen none, or there is none.
int chosen_gpu();
/// Has this thread choose it, unless it has.
void choose_gpu(int number);

/// `work` for another thread: there it begins on the GPU that this thread has chosen.
template <class Work>
auto on_own_device(Work work) {
  return [gpu = chosen_gpu(), work = std::move(work)]() mutable {
    choose_gpu(gpu);
    work();
  };
}

// What LibTorch's NCCL groups read from the environment when they are made. titan keeps its own limits and its own
// record of collectives; these make the library's, which knows the kernels, agree with them.

/// Names and values, as torchtitan sets them: errors end the process without waiting for the GPU, and when a collective
/// is overdue, the last `remembered` of them (0: none) are written to `file_prefix` followed by the rank. With
/// `one_gpu_visible`, where every rank calls its GPU number 0, symmetric memory does not take equal numbers for one
/// GPU.
std::vector<std::pair<std::string, std::string>> nccl_environment(int64_t remembered, const std::string& file_prefix,
                                                                  bool one_gpu_visible);

/// Sets what the user has not set. To be called before other threads read the environment.
void set_where_unset(const std::vector<std::pair<std::string, std::string>>& environment);

}  // namespace titan
