#include "titan/ops/unit_context.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "tensor_checks.h"
#include "titan/base/error.h"

namespace titan {
namespace {

constexpr int64_t kSlotsOfAFill = 16;  // what a block needs in forward, replay and backward: one memset for each block

}  // namespace

void QueueSink::run() {
  for (const auto& product : products_) product();
  products_.clear();
}

void ScaleTable::offer(const at::Tensor& tensor, const at::Tensor& largest) {
  TITAN_CHECK(largest.scalar_type() == at::kFloat && largest.numel() == 1 && largest.device() == tensor.device(),
              summary_of(largest), summary_of(tensor));
  const c10::Storage& storage = tensor.storage();
  offers_->insert_or_assign(storage.unsafeGetStorageImpl(),
                            Offer{storage.getWeakStorageImpl(), tensor.numel(), largest});
}

at::Tensor ScaleTable::find(const at::Tensor& tensor) const {
  const auto found = offers_->find(tensor.storage().unsafeGetStorageImpl());
  if (found == offers_->end() || found->second.numel != tensor.numel()) return {};
  // A new tensor may have been allocated at the address of a freed one.
  return found->second.storage.expired() ? at::Tensor() : found->second.largest;
}

void ScaleTable::forget_gone() {
  std::erase_if(*offers_, [](const auto& entry) { return entry.second.storage.expired(); });
}

at::Tensor AmaxSlots::take(int64_t count, const at::Tensor& like) {
  if (!zeros_.defined() || taken_ + count > zeros_.size(0)) {
    zeros_ = at::zeros({std::max(count, kSlotsOfAFill)}, like.options().dtype(at::kFloat));
    taken_ = 0;
  }
  taken_ += count;
  return zeros_.narrow(0, taken_ - count, count);
}

void SavedLedger::add(const at::Tensor& tensor) {
  storages_.emplace(tensor.storage().unsafeGetStorageImpl(), static_cast<int64_t>(tensor.storage().nbytes()));
}

int64_t SavedLedger::bytes() const {
  int64_t total = 0;
  for (const auto& [storage, bytes] : storages_) total += bytes;
  return total;
}

}  // namespace titan
