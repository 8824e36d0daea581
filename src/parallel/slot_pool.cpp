#include <algorithm>

#include "titan/parallel/weight_store.h"

namespace titan {
namespace {

int64_t bytes_of(const std::vector<Slot>& slots) {
  int64_t bytes = 0;
  for (const Slot& slot : slots) bytes += static_cast<int64_t>(slot.memory.nbytes());
  return bytes;
}

}  // namespace

void Slot::wait_to_host() {
  to_host.block_stream();
  to_host = {};
}

SlotPool::SlotPool(const Plan& plan, MemoryArena& device) {
  for (int64_t bytes : plan.weight_slots) weights.emplace_back().memory = device.allocate(bytes, at::kByte);
  for (int64_t bytes : plan.gradient_slots) gradients.emplace_back().memory = device.allocate(bytes, at::kByte);
  for (int64_t bytes : plan.message_slots) messages.push_back(device.allocate(bytes, at::kByte));
}

int64_t SlotPool::in_use() const {
  return std::count_if(weights.begin(), weights.end(), [](const Slot& slot) { return slot.in_use; });
}

int64_t SlotPool::weight_bytes() const { return bytes_of(weights); }
int64_t SlotPool::gradient_bytes() const { return bytes_of(gradients); }

}  // namespace titan
