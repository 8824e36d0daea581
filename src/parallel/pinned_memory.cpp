#include "titan/parallel/pinned_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/gpu/cuda.h"

namespace titan {
namespace {

Error no_host_memory(size_t bytes) {
  return {ExitCode::out_of_memory,
          fmt::format("the host has no {} more that a GPU can copy to (pinned memory); keep less there: leave out "
                      "optimizer.offload, activation_checkpoint.offload or training.enable_cpu_offload, or give the "
                      "job more of the host's memory",
                      human_bytes(static_cast<double>(bytes)))};
}

}  // namespace

PinnedMemory::Source PinnedMemory::cuda() {
  return {[](size_t bytes) {
            void* const block = titan::cuda().allocate_pinned(bytes);
            if (!block) throw no_host_memory(bytes);
            return block;
          },
          [](void* block) { titan::cuda().free_pinned(block); }};
}

PinnedMemory::~PinnedMemory() {
  for (const auto& [bytes, blocks] : free_) {
    for (void* block : blocks) source_.free(block);
  }
}

at::Tensor PinnedMemory::allocate(int64_t numel, at::ScalarType type) {
  const size_t bytes = static_cast<size_t>(numel) * c10::elementSize(type);
  if (bytes == 0) return at::empty({0}, at::TensorOptions(type));
  void* block = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<void*>& free = free_[bytes];
    if (!free.empty()) {
      block = free.back();
      free.pop_back();
    }
  }
  if (block == nullptr) block = source_.allocate(bytes);
  const auto give_back = [self = shared_from_this(), bytes](void* given) {
    const std::lock_guard<std::mutex> lock(self->mutex_);
    self->free_[bytes].push_back(given);
  };
  return at::from_blob(block, {numel}, give_back, at::TensorOptions(type));
}

}  // namespace titan
