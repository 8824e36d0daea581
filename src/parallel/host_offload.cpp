#include "titan/parallel/host_offload.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <unordered_map>

#include "titan/base/error.h"
#include "titan/base/text.h"
#include "titan/gpu/cuda.h"
#include "titan/ops/tensor_checks.h"

namespace titan {
namespace {

Error no_host_memory(size_t bytes) {
  return {ExitCode::out_of_memory,
          fmt::format("the host has no {} more that a GPU can copy to (pinned memory); keep less there: leave out "
                      "optimizer.offload, activation_checkpoint.offload or training.enable_cpu_offload, or give the "
                      "job more of the host's memory",
                      human_bytes(static_cast<double>(bytes)))};
}

/// Takes over the memory of another storage, and counts its bytes in `held` until it is freed. The allocator keeps its
/// record of the streams that use the memory, because the data pointer and its deleter move with it.
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

at::Tensor bytes_of(const at::Tensor& tensor) {
  at::Tensor bytes = at::empty({0}, tensor.options().dtype(at::kByte).requires_grad(false));
  return bytes.set_(tensor.storage(), 0, {static_cast<int64_t>(tensor.storage().nbytes())}, {1});
}

OffloadedTensors::View view_of(const at::Tensor& tensor, int64_t block) {
  return {block,
          tensor.scalar_type(),
          tensor.sizes().vec(),
          tensor.strides().vec(),
          tensor.storage_offset(),
          tensor.requires_grad()};
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
  TITAN_CHECK(target.defined() && source.defined() && target.scalar_type() == source.scalar_type() &&
                  target.sizes() == source.sizes(),
              summary_of(target), summary_of(source));
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
  AsyncCopy copy = copy_async(target, source, copies_to_device_, then);
  to_device_bytes_ += static_cast<int64_t>(source.nbytes());
  return copy;
}

AsyncCopy HostOffload::to_host(const at::Tensor& target, const at::Tensor& source) {
  AsyncCopy copy = copy_async(target, source, copies_to_host_);
  to_host_bytes_ += static_cast<int64_t>(source.nbytes());
  return copy;
}

std::vector<at::Tensor> HostOffload::wait_to_host(const std::vector<at::Tensor>& numbers) {
  TITAN_CHECK(!numbers.empty() && std::all_of(numbers.begin(), numbers.end(),
                                              [](const at::Tensor& number) { return number.defined(); }),
              numbers.size());
  if (!pins()) return numbers;
  std::vector<at::Tensor> here;
  AsyncCopy last;  // on one stream: all copies are complete when the last is
  for (const at::Tensor& number : numbers) {
    here.push_back(at::empty(number.sizes(), at::TensorOptions(number.scalar_type()).pinned_memory(true)));
    last = copy_async(here.back(), number, copies_to_host_);
  }
  last.synchronize();
  return here;
}

// The last copies had one unit's compute time to finish, so the stream hardly waits for them.
void ActivationOffload::free_sources() {
  for (AsyncCopy& copy : copies_) copy.block_stream();
  copies_.clear();
}

OffloadedTensors ActivationOffload::offload(const std::vector<at::Tensor*>& tensors) {
  free_sources();
  OffloadedTensors offloaded;
  std::unordered_map<const void*, int64_t> block_of;
  for (at::Tensor* tensor : tensors) {
    if (!tensor->defined()) {
      offloaded.views.emplace_back();
      continue;
    }
    const auto [found, is_new] =
        block_of.emplace(tensor->storage().unsafeGetStorageImpl(), static_cast<int64_t>(offloaded.blocks.size()));
    if (is_new) {
      const at::Tensor bytes = bytes_of(tensor->detach());
      const at::Tensor host = offload_->host().allocate(bytes.numel(), at::kByte, offload_->pins());
      copies_.push_back(offload_->to_host(host, bytes));
      offloaded.blocks.push_back({host, {}, {}});
    }
    offloaded.views.push_back(view_of(*tensor, found->second));
    tensor->reset();
  }
  return offloaded;
}

void ActivationOffload::fetch(OffloadedTensors& offloaded) {
  free_sources();
  for (OffloadedTensors::Block& block : offloaded.blocks) {
    if (block.device.defined()) continue;
    block.device = offload_->device().allocate(block.host.numel(), at::kByte);
    block.copy_back = offload_->to_device(block.device, block.host);
  }
}

void ActivationOffload::wait_fetch(OffloadedTensors& offloaded, const std::vector<at::Tensor*>& tensors) {
  TITAN_CHECK(tensors.size() == offloaded.views.size(), tensors.size(), offloaded.views.size());
  for (OffloadedTensors::Block& block : offloaded.blocks) {
    TITAN_CHECK(block.device.defined() && "fetch() comes before wait_fetch()");
    block.copy_back.block_stream();
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const OffloadedTensors::View& view = offloaded.views[i];
    if (view.block < 0) continue;
    const at::Tensor& bytes = offloaded.blocks[static_cast<size_t>(view.block)].device;
    at::Tensor tensor = at::empty({0}, bytes.options().dtype(view.type));
    tensor.set_(bytes.storage(), view.offset, view.sizes, view.strides);
    *tensors[i] = tensor.set_requires_grad(view.requires_grad);
  }
  offloaded = {};
}

}  // namespace titan
