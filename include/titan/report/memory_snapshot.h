// Who holds how much memory, and since when: a history of allocations as a pickle that PyTorch's viewer reads
// (pytorch.org/memory_viz). On a GPU the caching allocator keeps it; on the CPU, where LibTorch keeps none, its
// allocator is replaced by one that notes what goes in and out, with the ranges of work (ops/profile_range.h) as the
// stack.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "titan/base/log.h"

namespace titan {

class MemorySnapshots {
 public:
  static constexpr size_t kMostEntries = 100'000;  // the oldest are forgotten first

  /// From now on allocations are noted. Snapshots go to `folder`/iteration_N/rankR_memory_snapshot.pickle.
  MemorySnapshots(const at::Device& device, std::filesystem::path folder, int64_t rank, const Log& log);
  ~MemorySnapshots();
  MemorySnapshots(const MemorySnapshots&) = delete;
  MemorySnapshots& operator=(const MemorySnapshots&) = delete;

  /// After `step`.
  void write(int64_t step);
  /// Memory ran out after `last_step` steps: to iteration_N_exit.
  void write_at_exit(int64_t last_step);

 private:
  void write_to(const std::string& name);

  at::Device device_;
  std::filesystem::path folder_;
  int64_t rank_;
  const Log& log_;
  bool warned_ = false;
};

/// The history of the CPU's allocator as a pickle; for tests.
std::string cpu_memory_history();

}  // namespace titan
