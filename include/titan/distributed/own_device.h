// The GPU of a thread. CUDA uses device 0 for a thread that has not chosen one, and the first CUDA call of such a
// thread creates a context of half a gigabyte there, on every rank. So every new thread must choose its GPU first.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace titan {

/// The index of the GPU that this thread has chosen; 0 if it has chosen none, or there is none.
int chosen_gpu();
/// Chooses GPU `number` for this thread, unless it is chosen already.
void choose_gpu(int number);

/// Wraps `work` for another thread: it runs on the GPU that the calling thread has chosen.
template <class Work>
auto on_own_device(Work work) {
  return [gpu = chosen_gpu(), work = std::move(work)]() mutable {
    choose_gpu(gpu);
    work();
  };
}

// Environment variables that LibTorch's NCCL communicators read when they are created. titan has its own timeouts and
// its own trace of collectives; these settings make the library's, which sees the kernels, agree with them.

/// Names and values, as torchtitan sets them: errors end the process without waiting for the GPU. When a collective
/// times out, the last `remembered` collectives (0: none) are written to `file_prefix` followed by the rank.
/// `one_gpu_visible`: every rank's GPU has index 0; adds the variable that lets symmetric memory accept equal indices.
std::vector<std::pair<std::string, std::string>> nccl_environment(int64_t remembered, const std::string& file_prefix,
                                                                  bool one_gpu_visible);

/// Sets the variables that the user has not set. Call it before other threads read the environment.
void set_where_unset(const std::vector<std::pair<std::string, std::string>>& environment);

}  // namespace titan
