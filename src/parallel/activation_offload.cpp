#include "titan/parallel/activation_offload.h"

#include <ATen/ops/empty.h>

#include <unordered_map>

#include "titan/base/error.h"

namespace titan {
namespace {

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

// The last copies had one unit's compute time to finish: the stream hardly waits for them.
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
