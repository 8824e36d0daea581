#include "titan/ops/unit_context.h"

namespace titan {

void QueueSink::run() {
  for (const auto& product : products_) product();
  products_.clear();
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
