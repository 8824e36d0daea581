#include "titan/parallel/memory_arena.h"

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "titan/base/error.h"

namespace titan {
namespace {

/// Storage that says when it goes. Its memory stays its allocator's, which hears of streams that use it.
class CountedStorage : public c10::StorageImpl {
 public:
  CountedStorage(c10::StorageImpl& taken_from, std::shared_ptr<std::atomic<int64_t>> held)
      : StorageImpl(use_byte_size_t(), static_cast<int64_t>(taken_from.nbytes()),
                    std::move(taken_from.mutable_data_ptr()), taken_from.allocator(), /*resizable=*/false),
        held_(std::move(held)),
        bytes_(static_cast<int64_t>(nbytes())) {
    *held_ += bytes_;
  }
  ~CountedStorage() override { *held_ -= bytes_; }

 private:
  std::shared_ptr<std::atomic<int64_t>> held_;
  int64_t bytes_;
};

}  // namespace

at::Tensor MemoryArena::allocate(int64_t numel, at::ScalarType type, bool pinned) {
  const at::Tensor given =
      pinned ? pinned_->allocate(numel, type) : at::empty({numel}, at::TensorOptions(device_).dtype(type));
  c10::Storage counted(c10::make_intrusive<CountedStorage>(*given.storage().unsafeGetStorageImpl(), held_));
  at::Tensor tensor = at::empty({0}, given.options());
  tensor.set_(std::move(counted), 0, {numel}, {1});
  peak_ = std::max(peak_, held_bytes());
  return tensor;
}

void AsyncCopy::block_stream() {
  if (done_) done_->block(c10::impl::VirtualGuardImpl(done_->device_type()).getStream(done_->device()));
  target_.reset();
  source_.reset();
}

void AsyncCopy::synchronize() {
  if (done_) done_->synchronize();
  *this = {};
}

AsyncCopy copy_async(const at::Tensor& target, const at::Tensor& source, std::optional<c10::Stream>& copies,
                     const std::function<void()>& then) {
  const at::Device device = source.is_cpu() ? target.device() : source.device();
  if (device.is_cpu()) {
    target.copy_(source);
    if (then) then();
    return {target, source, nullptr};
  }
  const c10::impl::VirtualGuardImpl streams(device.type());
  if (!copies) copies = streams.getStreamFromGlobalPool(device, /*isHighPriority=*/false);
  c10::Event before(device.type());
  before.record(streams.getStream(device));
  const c10::StreamGuard on_copies(*copies);
  before.block(*copies);
  target.copy_(source, /*non_blocking=*/true);
  if (then) then();
  auto done = std::make_shared<c10::Event>(device.type());
  done->record(*copies);
  return {target, source, std::move(done)};
}

AsyncCopy HostOffload::to_device(const at::Tensor& target, const at::Tensor& source,
                                 const std::function<void()>& then) {
  to_device_bytes_ += static_cast<int64_t>(source.nbytes());
  return copy_async(target, source, copies_to_device_, then);
}

AsyncCopy HostOffload::to_host(const at::Tensor& target, const at::Tensor& source) {
  to_host_bytes_ += static_cast<int64_t>(source.nbytes());
  return copy_async(target, source, copies_to_host_);
}

std::vector<at::Tensor> HostOffload::wait_to_host(const std::vector<at::Tensor>& numbers) {
  TITAN_CHECK(!numbers.empty());
  if (!pins()) return numbers;
  std::vector<at::Tensor> here;
  AsyncCopy last;  // of one stream, whose copies are over when it is
  for (const at::Tensor& number : numbers) {
    here.push_back(at::empty(number.sizes(), at::TensorOptions(number.scalar_type()).pinned_memory(true)));
    last = copy_async(here.back(), number, copies_to_host_);
  }
  last.synchronize();
  return here;
}

}  // namespace titan
