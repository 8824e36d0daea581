// Page-locked memory of the host in blocks of exactly the size asked for: LibTorch's allocator rounds each up to a
// power of two, which of large ones is up to twice the memory. The only file here that asks CUDA for memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace titan {

/// Keeps freed blocks for the next request of their size. A copy may still read a freed block, so its next user must
/// write on the stream of that copy, as HostOffload does.
class PinnedMemory : public std::enable_shared_from_this<PinnedMemory> {
 public:
  /// Whose memory it is: CUDA's, or in tests any.
  struct Source {
    void* (*allocate)(size_t bytes);
    void (*free)(void* block);
  };
  static Source cuda();

  explicit PinnedMemory(Source source = cuda()) : source_(source) {}
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  /// Uninitialised and flat. Outlives this when it has to.
  at::Tensor allocate(int64_t numel, at::ScalarType type);

 private:
  Source source_;
  std::mutex mutex_;
  std::unordered_map<size_t, std::vector<void*>> free_;
};

}  // namespace titan
