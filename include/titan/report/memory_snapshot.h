// The history of CUDA's caching allocator as a pickle for PyTorch's viewer (pytorch.org/memory_viz): which allocations
// hold how much GPU memory, and since when.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "titan/base/log.h"

namespace titan {

class MemorySnapshots {
 public:
  static constexpr size_t kMostEntries = 100'000;  // torchtitan's; the oldest are dropped first

  /// Starts recording allocations. Snapshots go to `folder`/iteration_N/rankR_memory_snapshot.pickle.
  MemorySnapshots(std::filesystem::path folder, int64_t rank, const Log& log);
  ~MemorySnapshots();
  MemorySnapshots(const MemorySnapshots&) = delete;
  MemorySnapshots& operator=(const MemorySnapshots&) = delete;

  /// Call after `step`.
  void write(int64_t step);
  /// Call when memory ran out after `last_step` steps; writes to iteration_N_exit.
  void write_at_exit(int64_t last_step);

 private:
  void write_to(const std::string& name);

  std::filesystem::path folder_;
  int64_t rank_;
  const Log& log_;
  bool warned_ = false;
};

}  // namespace titan
