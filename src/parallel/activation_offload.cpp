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

PutAway::View view_of(const at::Tensor& tensor, int64_t block) {
  return {block,
          tensor.scalar_type(),
          tensor.sizes().vec(),
          tensor.strides().vec(),
          tensor.storage_offset(),
          tensor.requires_grad()};
}

}  // namespace

// By now the copies before this have a unit's time behind them: what they read may be used again.
void ActivationOffload::let_go() {
  for (Crossing& crossing : leaving_) crossing.order();
  leaving_.clear();
}

PutAway ActivationOffload::put_away(const std::vector<at::Tensor*>& tensors) {
  let_go();
  PutAway away;
  std::unordered_map<const void*, int64_t> block_of;
  for (at::Tensor* tensor : tensors) {
    if (!tensor->defined()) {
      away.views.emplace_back();
      continue;
    }
    const auto [found, is_new] =
        block_of.emplace(tensor->storage().unsafeGetStorageImpl(), static_cast<int64_t>(away.blocks.size()));
    if (is_new) {
      const at::Tensor bytes = bytes_of(tensor->detach());
      const at::Tensor host = link_->home().allocate(bytes.numel(), at::kByte, link_->pins());
      leaving_.push_back(link_->start_to_home(host, bytes));
      away.blocks.push_back({host, {}, {}});
    }
    away.views.push_back(view_of(*tensor, found->second));
    tensor->reset();
  }
  return away;
}

void ActivationOffload::start_back(PutAway& away) {
  let_go();
  for (PutAway::Block& block : away.blocks) {
    if (block.device.defined()) continue;
    block.device = link_->device().allocate(block.host.numel(), at::kByte);
    block.back = link_->start_to_device(block.device, block.host);
  }
}

void ActivationOffload::bring_back(PutAway& away, const std::vector<at::Tensor*>& tensors) {
  TITAN_CHECK(tensors.size() == away.views.size(), tensors.size(), away.views.size());
  for (PutAway::Block& block : away.blocks) {
    TITAN_CHECK(block.device.defined() && "what comes back has been fetched");
    block.back.order();
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const PutAway::View& view = away.views[i];
    if (view.block < 0) continue;
    const at::Tensor& bytes = away.blocks[static_cast<size_t>(view.block)].device;
    at::Tensor tensor = at::empty({0}, bytes.options().dtype(view.type));
    tensor.set_(bytes.storage(), view.offset, view.sizes, view.strides);
    *tensors[i] = tensor.set_requires_grad(view.requires_grad);
  }
  away = {};
}

}  // namespace titan
