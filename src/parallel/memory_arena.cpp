#include "titan/parallel/memory_arena.h"

#include <ATen/ops/empty.h>

#include <algorithm>

namespace titan {

at::Tensor MemoryArena::allocate(int64_t numel, at::ScalarType type, bool pinned) {
  at::Tensor tensor = at::empty({numel}, at::TensorOptions(device_).dtype(type).pinned_memory(pinned));
  storages_.emplace_back(tensor.storage().getWeakStorageImpl());
  peak_ = std::max(peak_, held_bytes());
  return tensor;
}

int64_t MemoryArena::held_bytes() {
  int64_t total = 0;
  std::erase_if(storages_, [](const auto& storage) { return storage.expired(); });
  for (const auto& storage : storages_) {
    if (const auto alive = storage.lock()) total += static_cast<int64_t>(alive->nbytes());
  }
  return total;
}

void HostLink::to_device(const at::Tensor& target, const at::Tensor& source) {
  target.copy_(source, /*non_blocking=*/true);
  to_device_bytes_ += static_cast<int64_t>(source.nbytes());
}

void HostLink::to_home(const at::Tensor& target, const at::Tensor& source) {
  // Blocking: the host reads the result next.
  target.copy_(source);
  to_home_bytes_ += static_cast<int64_t>(source.nbytes());
}

}  // namespace titan
