#include "titan/parallel/memory_arena.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace titan {

at::Tensor MemoryArena::allocate(int64_t numel, at::ScalarType type, bool pinned) {
  at::Tensor tensor =
      pinned ? pinned_->allocate(numel, type) : at::empty({numel}, at::TensorOptions(device_).dtype(type));
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

void Crossing::order() {
  if (done_) done_->block(c10::impl::VirtualGuardImpl(done_->device_type()).getStream(done_->device()));
  target_.reset();
  source_.reset();
}

void Crossing::wait() {
  if (done_) done_->synchronize();
  *this = {};
}

Crossing HostLink::start(const at::Tensor& target, const at::Tensor& source, std::optional<c10::Stream>& copies) {
  const at::Device& device = device_->device();
  if (device.is_cpu()) {
    target.copy_(source);
    return {target, source, nullptr};
  }
  const c10::impl::VirtualGuardImpl streams(device.type());
  if (!copies) copies = streams.getStreamFromGlobalPool(device, /*isHighPriority=*/false);
  c10::Event before(device.type());
  before.record(streams.getStream(device));
  const c10::StreamGuard on_copies(*copies);
  before.block(*copies);
  target.copy_(source, /*non_blocking=*/true);
  auto done = std::make_shared<c10::Event>(device.type());
  done->record(*copies);
  return {target, source, std::move(done)};
}

Crossing HostLink::start_to_device(const at::Tensor& target, const at::Tensor& source) {
  to_device_bytes_ += static_cast<int64_t>(source.nbytes());
  return start(target, source, copies_to_device_);
}

Crossing HostLink::start_to_home(const at::Tensor& target, const at::Tensor& source) {
  to_home_bytes_ += static_cast<int64_t>(source.nbytes());
  return start(target, source, copies_to_home_);
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
